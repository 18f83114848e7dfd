"""Points of 32 dimensions: scaled, clustered, and a line through them; the argument is how many."""
import sys

import numpy
from sklearn.cluster import MiniBatchKMeans
from sklearn.linear_model import SGDRegressor
from sklearn.preprocessing import StandardScaler

count = int(sys.argv[1])
points = numpy.random.default_rng(7).random((count, 32))
points = StandardScaler(copy=False).fit_transform(points)
target = points[:, :8].sum(axis=1)
line = SGDRegressor(max_iter=2, tol=None, shuffle=False, random_state=1).fit(points, target)
print(" ".join(f"{weight:.4f}" for weight in line.coef_[:10]))
groups = MiniBatchKMeans(n_clusters=6, n_init=1, max_iter=1, batch_size=4096, random_state=1).fit_predict(points)
print(numpy.bincount(groups).tolist())
