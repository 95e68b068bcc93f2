// {"name": "Ada", "times": 2} arrives as `--name Ada --times 2`, and as a line of JSON on standard
// input. Standard output is the result; an exit code other than 0 is an error, and the end of
// standard error goes with it.
package main

import (
	"flag"
	"fmt"
	"os"
)

func main() {
	name := flag.String("name", "", "whom to greet")
	times := flag.Int("times", 1, "how often")
	flag.Parse()
	for number := 1; number <= *times; number++ {
		fmt.Fprintf(os.Stderr, "::progress %d/%d greeting %d\n", number, *times, number)
		fmt.Printf("Hello, %s!\n", *name)
	}
}
