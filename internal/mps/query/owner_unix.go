//go:build unix

package query

import (
	"io/fs"
	"syscall"

	"cotenant/internal/observe"
)

func fileOwner(info fs.FileInfo) observe.Value[int] {
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return observe.Got("stat", int(st.Uid))
	}
	return observe.None[int]("stat", 0, "not reported")
}
