package model

import (
	"cotenant/internal/backend"
	"cotenant/internal/embedded"
)

// LoadEmbedded loads the model that the program carries; ownership of be as with Load.
func LoadEmbedded(be backend.Backend, opt Options) (*Model, error) {
	return LoadBytes(embedded.Name, embedded.GGUF(), be, opt)
}
