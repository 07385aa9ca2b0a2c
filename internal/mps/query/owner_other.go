//go:build !unix

package query

import (
	"io/fs"

	"cotenant/internal/observe"
)

func fileOwner(fs.FileInfo) observe.Value[int] {
	return observe.None[int]("stat", 0, "no user ids on this system")
}
