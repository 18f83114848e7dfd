# Vectors of numbers, in order and by groups; the argument is how many.
count <- as.integer(commandArgs(TRUE)[1])
x <- as.numeric(seq_len(count))
y <- (x * 7919) %% 1000003
z <- cumsum(y)
group <- as.integer(x %% 64)
sums <- rowsum(y, group)
x <- x + y / 2
cat(sprintf("%.3f %.3f %.3f %.3f %.3f\n", sum(x), sum(y), z[count], sums[1], sums[64]))
