// A Go program without libc: goroutines with data that leave, maps, a garbage collection, channels, files, children.
package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"time"
)

func check(ok bool, what string) {
	if !ok {
		fmt.Fprintln(os.Stderr, what)
		os.Exit(99)
	}
}

func works(n int) (sum uint64) {
	words := make([]uint64, 1<<20)
	for round := uint64(0); round < 3; round++ {
		for i := range words {
			words[i] = uint64(i)*0x9e3779b97f4a7c15 + round
		}
		runtime.Gosched()
		for i, word := range words {
			check(word == uint64(i)*0x9e3779b97f4a7c15+round, "a wrong word")
			sum += word
		}
	}
	table := map[string][]byte{}
	for i := 0; i < 10000; i++ {
		table[fmt.Sprint(n, i)] = bytes.Repeat([]byte{byte(i)}, 200)
	}
	for i := 0; i < 10000; i++ {
		entry := table[fmt.Sprint(n, i)]
		check(len(entry) == 200 && entry[199] == byte(i), "a wrong entry")
	}
	return sum
}

func main() {
	if len(os.Args) > 1 {
		fmt.Println("a child of", len(os.Args))
		return
	}
	var group sync.WaitGroup
	sums := make([]uint64, 6)
	for n := range sums {
		group.Add(1)
		go func() { defer group.Done(); sums[n] = works(n); time.Sleep(time.Millisecond) }()
	}
	file, err := os.CreateTemp("", "hosted")
	check(err == nil, "no file")
	defer os.Remove(file.Name())
	block := bytes.Repeat([]byte("farshore"), 512)
	for i := 0; i < 2000; i++ {
		_, err := file.WriteAt(block, int64(i)*4096)
		check(err == nil, "no write")
	}
	read := make([]byte, 4096)
	for i := 0; i < 2000; i++ {
		_, err := file.ReadAt(read, int64(i)*4096)
		check(err == nil && bytes.Equal(read, block), "a wrong block")
	}
	out, err := exec.Command(os.Args[0], "child", "of").CombinedOutput()
	check(err == nil, fmt.Sprint("no child: ", err))
	group.Wait()
	runtime.GC()
	name, err := os.Executable()
	check(err == nil && name != "", "no name")
	fmt.Print(string(out), sums, "\n")
}
