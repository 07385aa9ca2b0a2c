//go:build !nocuda && !(linux && (amd64 || arm64))

package dl

const nocuda = false
