//go:build race

package inspect

// raced says that the race detector is on: child processes then start slowly, and a part of the hosts is enough for it.
const raced = true
