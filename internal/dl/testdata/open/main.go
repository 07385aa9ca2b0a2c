// Open says whether libraries can be opened and opens one.
package main

import (
	"cotenant/internal/dl"
	"fmt"
)

func main() {
	_, err := dl.Open("libc.so.6")
	fmt.Println(dl.Available(), "|", err)
}
