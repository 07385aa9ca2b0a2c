//go:build !unix

package probe

const nonBlocking = 0
