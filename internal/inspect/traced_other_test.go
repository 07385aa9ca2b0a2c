//go:build !linux

package inspect

func traced() {}
