//go:build race

package probe

// raceEnabled thins out tests that start hundreds of processes: races are in the supervisor, which a few of them show.
const raceEnabled = true
