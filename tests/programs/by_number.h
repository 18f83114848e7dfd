/* Calls that may wait, made by their numbers. Included before a program (`-include`), it has them come by a `syscall` instruction of libc's of
 * which nobody can tell the number before the call. Since glibc 2.41 all of them come by such a one. */
#ifndef FARSHORE_TESTS_BY_NUMBER_H
#define FARSHORE_TESTS_BY_NUMBER_H

#define _GNU_SOURCE
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/file.h>
#include <sys/msg.h>
#include <sys/select.h>
#include <sys/sem.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define read(fd, bytes, count) ((ssize_t)syscall(SYS_read, (fd), (bytes), (count)))
#define write(fd, bytes, count) ((ssize_t)syscall(SYS_write, (fd), (bytes), (count)))
#define pause() ((int)syscall(SYS_pause))
#define poll(fds, count, time) ((int)syscall(SYS_poll, (fds), (count), (time)))
#define nanosleep(time, left) ((int)syscall(SYS_nanosleep, (time), (left)))
#define select(count, reads, writes, errors, time) ((int)syscall(SYS_select, (count), (reads), (writes), (errors), (time)))
#define epoll_wait(fd, events, count, time) ((int)syscall(SYS_epoll_wait, (fd), (events), (count), (time)))
#define epoll_pwait(fd, events, count, time, mask) ((int)syscall(SYS_epoll_pwait, (fd), (events), (count), (time), (mask), 8))
#define semtimedop(set, what, count, time) ((int)syscall(SYS_semtimedop, (set), (what), (count), (time)))
#define sigtimedwait(set, info, time) ((int)syscall(SYS_rt_sigtimedwait, (set), (info), (time), 8))
#define recv(fd, bytes, count, flags) ((ssize_t)syscall(SYS_recvfrom, (fd), (bytes), (count), (flags), NULL, NULL))
#define msgrcv(queue, message, bytes, kind, flags) ((ssize_t)syscall(SYS_msgrcv, (queue), (message), (bytes), (kind), (flags)))
#define flock(fd, what) ((int)syscall(SYS_flock, (fd), (what)))

#endif
