//go:build unix

package probe

import "syscall"

const nonBlocking = syscall.O_NONBLOCK
