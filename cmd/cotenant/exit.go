package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"cotenant/internal/soak"
)

// Exit codes, the same for every command; each command's help says what they mean there.
const (
	exitYes         = 0 // done, and yes
	exitFailed      = 1
	exitUsage       = 2
	exitNo          = 3 // checked, and the answer is no
	exitUnchecked   = 4 // could not be checked
	exitInterrupted = 130
)

// exit is an error with its exit code and, apart from it, what to do about it. An empty text prints nothing.
type exit struct {
	code int
	err  error
	hint string
}

func (e *exit) Error() string {
	if e.err == nil {
		return ""
	}
	return e.err.Error()
}

func (e *exit) Unwrap() error { return e.err }

// usageError is exit code 2, with where to read on.
func usageError(c *cobra.Command, err error) error {
	return &exit{exitUsage, err, fmt.Sprintf("%s --help", c.CommandPath())}
}

func usagef(c *cobra.Command, format string, args ...any) error {
	return usageError(c, fmt.Errorf(format, args...))
}

// usageArgs makes a wrong number of arguments a usage error.
func usageArgs(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		if err := check(c, args); err != nil {
			return usageError(c, err)
		}
		return nil
	}
}

func exitCode(err error) int {
	var e *exit
	var u *soak.UsageError
	switch {
	case errors.As(err, &e):
		return e.code
	case errors.As(err, &u), strings.HasPrefix(err.Error(), "unknown command"):
		return exitUsage
	}
	return exitFailed
}

func hintOf(err error) string {
	var e *exit
	if errors.As(err, &e) {
		return e.hint
	}
	return ""
}
