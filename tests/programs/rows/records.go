// Records with strings and slices, gone through twice; the argument is how many.
package main

import (
	"fmt"
	"os"
	"strconv"
)

type row struct {
	number int
	name   string
	parts  []int
	sum    int
}

func main() {
	count, err := strconv.Atoi(os.Args[1])
	if err != nil {
		panic(err)
	}
	var rows []*row
	for number := 1; number <= count; number++ {
		one := &row{number: number, name: "row number " + strconv.Itoa(number)}
		for part := 1; part <= 8; part++ {
			one.parts = append(one.parts, number*part)
		}
		rows = append(rows, one)
	}
	for _, one := range rows {
		for _, part := range one.parts {
			one.sum += part
		}
	}
	sum, letters := 0, 0
	for _, one := range rows {
		sum = (sum*31 + one.sum) % 1000000007
		letters += len(one.name)
	}
	fmt.Println(sum, letters)
}
