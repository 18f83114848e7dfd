// A dynamically linked Go program: goroutines on stacks of 2 KiB that make system calls themselves, threads of C's, preemption by signals, handlers on
// the alternate stacks of Go's runtime, which checks them; and memory of more than the limit.
package main

/*
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

static int parent(void) { return getppid(); }

static void *call_often(void *count)
{
	for (int i = 0; i < 1000; i++) *(int *)count += getppid() > 0;
	return NULL;
}

static int threads(void)
{
	pthread_t thread[4];
	int count[4] = {0}, all = 0;
	for (int i = 0; i < 4; i++) pthread_create(&thread[i], NULL, call_often, &count[i]);
	for (int i = 0; i < 4; i++) pthread_join(thread[i], NULL), all += count[i];
	return all;
}
*/
import "C"

import (
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"sync"
	"syscall"
	"time"
)

// A goroutine's own share of memory, on which it computes; now and then it makes calls, by Go and by C.
func work(number int, sums []uint64, wait *sync.WaitGroup) {
	defer wait.Done()
	words := make([]uint64, 32<<10)
	state := uint64(number) + 1
	for round := 0; round < 4; round++ {
		for i := range words {
			state = state*6364136223846793005 + 1442695040888963407
			words[i] ^= state >> 7
		}
		if syscall.Getppid() != int(C.parent()) {
			panic("getppid")
		}
		runtime.Gosched()
	}
	for _, word := range words {
		sums[number] += word
	}
}

// Never calls anything: it is stopped by a signal, or holds up the collector.
func spin(stop *bool) uint64 {
	n := uint64(0)
	for i := 0; i < 200_000_000 && !*stop; i++ {
		n += uint64(i) ^ n<<1
	}
	return n
}

func main() {
	const goroutines = 200
	sums := make([]uint64, goroutines)
	var wait sync.WaitGroup
	wait.Add(goroutines)
	for i := 0; i < goroutines; i++ {
		go work(i, sums, &wait)
	}
	stop := false
	go spin(&stop)
	for i := 0; i < 10; i++ {
		runtime.GC()
	}
	wait.Wait()
	stop = true
	total := uint64(0)
	for _, sum := range sums {
		total += sum
	}
	fmt.Printf("sum %x, calls in threads %d\n", total, int(C.threads()))

	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGUSR1)
	got := 0
	for i := 0; i < 100; i++ {
		syscall.Kill(os.Getpid(), syscall.SIGUSR1)
		select {
		case <-signals:
			got++
		case <-time.After(10 * time.Second):
		}
	}
	fmt.Printf("signals %d\n", got)

	read, write, _ := os.Pipe()
	go func() { time.Sleep(20 * time.Millisecond); write.Write([]byte("late")) }()
	buffer := make([]byte, 8)
	n, err := read.Read(buffer)
	fmt.Printf("read %q %v\n", buffer[:n], err)

	func() {
		defer func() { fmt.Println("recovered:", recover()) }()
		var nothing *[4]int
		fmt.Println(nothing[1])
	}()
}
