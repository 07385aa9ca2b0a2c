package model

import (
	"errors"
	"fmt"

	"cotenant/internal/backend"
)

// Load reads the model at path (a GGUF file, a folder, or a repository in the local Hugging Face cache) and uploads it to
// be. On success the model owns be: Close closes it. On an error be stays the caller's, with whatever was uploaded.
func Load(path string, be backend.Backend, opt Options) (*Model, error) {
	return nil, fmt.Errorf("load %s: %w", path, errors.ErrUnsupported)
}
