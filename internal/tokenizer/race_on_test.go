//go:build race

package tokenizer

// underRace: the race detector makes tests that only measure work ten times slower.
const underRace = true
