//go:build race

package model

// raceEnabled: the race detector makes the kernels many times slower, so the tests on SmolLM2 take every fourth or fifth
// prompt and raceGreedyTokens tokens. What they share between goroutines is the same.
const (
	raceEnabled      = true
	raceGreedyTokens = 4
)
