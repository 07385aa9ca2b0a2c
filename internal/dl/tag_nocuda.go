//go:build nocuda

package dl

const nocuda = true
