//go:build unix

package inspect

import (
	"io/fs"
	"os"
)

func executable(info fs.FileInfo) bool { return info.Mode()&0o111 != 0 }

func userID() int { return os.Geteuid() }
