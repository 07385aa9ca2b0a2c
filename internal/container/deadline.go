package container

import (
	"os"
	"strings"
	"time"
)

// DeadlineVariable holds when the program ends by itself where it is a container's first process: a duration, such as 90s.
const DeadlineVariable = "COTENANT_CONTAINER_DEADLINE"

// deadlineExit is the exit code then, that of timeout(1).
const deadlineExit = 124

// ArmDeadline makes a container's first process end by its deadline, whoever still waits for it and whatever hangs: the kernel then
// ends all the others in the container, and the engine removes it. Call it first in main. Elsewhere it does nothing.
func ArmDeadline() {
	text := os.Getenv(DeadlineVariable)
	if text == "" || os.Getpid() != 1 {
		return
	}
	d, err := time.ParseDuration(text)
	if err != nil || d <= 0 || d > maxContainerDeadline {
		// Without a deadline it must not run.
		os.Stderr.WriteString(DeadlineVariable + "=" + strings.ToValidUTF8(text, "?") + " is no deadline\n")
		os.Exit(2)
	}
	time.AfterFunc(d, func() { os.Exit(deadlineExit) })
}
