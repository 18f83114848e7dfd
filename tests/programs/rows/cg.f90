! Conjugate gradients on a sparse matrix in static arrays, after the NAS benchmark CG: rows in order, a vector that is read at random.
program cg
    implicit none
    integer, parameter :: rows = 600000, each = 32, entries = rows * each
    double precision :: a(entries), x(rows), r(rows), p(rows), q(rows)
    integer :: columns(entries), starts(rows + 1)
    common /matrix/ a, columns, starts
    common /vectors/ x, r, p, q
    integer :: i, k, round
    integer(8) :: seed
    double precision :: rho, rho0, d, alpha, beta, total

    seed = 314159
    k = 0
    do i = 1, rows
        starts(i) = k + 1
        k = k + 1
        a(k) = 64.0d0
        columns(k) = i
        do while (k < i * each)
            k = k + 1
            seed = mod(seed * 16807_8, 2147483647_8)
            columns(k) = int(mod(seed, int(rows, 8))) + 1
            a(k) = dble(seed) / 2147483647.0d0
        end do
    end do
    starts(rows + 1) = k + 1
    x = 0.0d0
    r = 1.0d0
    p = r
    rho = sum(r * r)
    do round = 1, 4
        do i = 1, rows
            total = 0.0d0
            do k = starts(i), starts(i + 1) - 1
                total = total + a(k) * p(columns(k))
            end do
            q(i) = total
        end do
        d = sum(p * q)
        alpha = rho / d
        x = x + alpha * p
        r = r - alpha * q
        rho0 = rho
        rho = sum(r * r)
        beta = rho / rho0
        p = r + beta * p
    end do
    print '(3es24.15)', rho, sum(x), x(rows)
end program cg
