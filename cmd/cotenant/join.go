package main

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"cotenant/internal/backend"
	"cotenant/internal/backend/cpu"
	"cotenant/internal/embedded"
	"cotenant/internal/engine"
	"cotenant/internal/model"
)

// modelOptions say which model to serve, and on what.
type modelOptions struct {
	Model      string // path or name as weights.Resolve takes it; empty: the embedded one
	ServedName string // empty: the model's own
	Backend    string // auto, cpu, cuda
	Context    int    // tokens; 0: what the model and the KV memory allow
	MaxSeqs    int    // 0: the engine's default
	KVMemory   int64  // bytes; 0: the engine's default
	Threads    int    // 0: all cores
	Log        *slog.Logger
}

var errNoCUDA = errors.New("backend cuda is not in this version")

// openEngine loads a model and starts an engine on it.
func openEngine(o modelOptions) (*engine.Engine, error) {
	switch o.Backend {
	case "auto", "cpu":
	case "cuda":
		return nil, &exit{exitFailed, errNoCUDA, "--backend cpu serves the same models on all cores"}
	default:
		return nil, &exit{exitUsage, fmt.Errorf("unknown backend %q", o.Backend), "backends are auto, cpu and cuda"}
	}
	id := o.ServedName
	if id == "" {
		id = servedName(o.Model)
	}
	cfg := engine.Config{ID: id, MaxSeqs: o.MaxSeqs, KVMemory: o.KVMemory, ContextLength: o.Context, Log: o.Log}
	return engine.New(cfg, func() (engine.Runtime, error) {
		be, err := cpu.New(cpu.Options{Threads: o.Threads})
		if err != nil {
			return engine.Runtime{}, fmt.Errorf("starting the CPU backend: %w", err)
		}
		rt, err := openRuntime(o.Model, be)
		if err != nil {
			return engine.Runtime{}, errors.Join(err, be.Close())
		}
		return rt, nil
	})
}

// servedName is a model's name where none is given: the embedded one's, a file's or folder's, and else the repository's.
func servedName(path string) string {
	if path == "" {
		return embedded.Name
	}
	if _, err := os.Stat(path); err != nil {
		return path
	}
	if whole, err := filepath.Abs(path); err == nil {
		path = whole
	}
	name := filepath.Base(path)
	for _, ending := range []string{".gguf", ".safetensors"} {
		name = strings.TrimSuffix(name, ending)
	}
	if name == string(filepath.Separator) || name == "" {
		return "model"
	}
	return name
}

func openRuntime(path string, be backend.Backend) (engine.Runtime, error) {
	var m *model.Model
	var err error
	if path == "" {
		m, err = model.LoadEmbedded(be, model.Options{})
	} else {
		m, err = model.Load(path, be, model.Options{})
	}
	if err != nil {
		return engine.Runtime{}, err
	}
	return engine.FromModel(m, be), nil
}
