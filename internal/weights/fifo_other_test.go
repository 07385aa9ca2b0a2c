//go:build !unix

package weights_test

import "errors"

func mkfifo(string) error { return errors.ErrUnsupported }
