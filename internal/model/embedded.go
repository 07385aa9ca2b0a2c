package model

import (
	"errors"
	"fmt"

	"cotenant/internal/backend"
	"cotenant/internal/embedded"
	"cotenant/internal/weights"
)

// LoadEmbedded loads the model that the program carries; ownership of be as with Load.
func LoadEmbedded(be backend.Backend, opt Options) (*Model, error) {
	f, err := weights.FromBytes(embedded.Name+".gguf", embedded.GGUF())
	if err != nil {
		return nil, fmt.Errorf("load embedded model: %w", err)
	}
	m, err := fromFile(f, be, opt)
	if err != nil {
		return nil, fmt.Errorf("load embedded model: %w", errors.Join(err, f.Close()))
	}
	return m, nil
}
