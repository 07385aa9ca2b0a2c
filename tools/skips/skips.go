// Package skips ends `go test ./...` with a list of the tests that were skipped and the tool that each lacks. Its test
// prints the list to the go command's own standard error, because go shows nothing of a package that passes.
package skips
