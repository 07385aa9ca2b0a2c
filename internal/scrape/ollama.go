package scrape

import (
	"context"
	"encoding/json"
	"fmt"
)

// Ollama reads /api/ps of an Ollama server, which has no metrics: what its loaded models take of host and device memory. All else is
// not exposed.
func (c *Client) Ollama(ctx context.Context, url string) ([]Reading, error) {
	body, err := c.get(ctx, url, "application/json")
	if err != nil {
		return All(StateError), fmt.Errorf("reading Ollama's models: %w", err)
	}
	return ParseOllama(body)
}

// ParseOllama reads the document of /api/ps: models with size, which is all memory, and size_vram, the part of it on GPUs.
func ParseOllama(text []byte) ([]Reading, error) {
	var doc struct {
		Models *[]struct {
			Size     *int64 `json:"size"`
			SizeVRAM *int64 `json:"size_vram"`
		} `json:"models"`
	}
	if err := json.Unmarshal(text, &doc); err != nil {
		return All(StateError), fmt.Errorf("parsing Ollama's models: %w", err)
	}
	if doc.Models == nil {
		return All(StateError), fmt.Errorf("parsing Ollama's models: no models in it")
	}
	host, device := int64(0), int64(0)
	for _, m := range *doc.Models {
		if m.Size == nil || m.SizeVRAM == nil || *m.SizeVRAM < 0 || *m.Size < *m.SizeVRAM || *m.Size > 1<<52 {
			return All(StateError), fmt.Errorf("parsing Ollama's models: a model without its size and size_vram")
		}
		host, device = host+*m.Size-*m.SizeVRAM, device+*m.SizeVRAM
	}
	readings := All(StateNotExposed)
	for i := range readings {
		r := &readings[i]
		switch r.Name {
		case "server_memory_bytes":
			r.State, r.Source, r.Value = StateValue, "/api/ps size-size_vram", Some(host)
		case "device_memory_bytes":
			r.State, r.Source, r.Value = StateValue, "/api/ps size_vram", Some(device)
		}
	}
	return readings, nil
}
