package server

import (
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"
)

// debugVars answers in the shape of the standard library's expvar, which other programs read memstats from. It isn't that package,
// whose cmdline would show secrets given as flags.
func (s *Server) debugVars(w http.ResponseWriter, _ *http.Request) error {
	var mem runtime.MemStats
	runtime.ReadMemStats(&mem)
	s.mu.Lock()
	running := s.running
	s.mu.Unlock()
	models := map[string]any{}
	for _, g := range s.models {
		st := g.Stats()
		vars := map[string]any{
			"kv_pages":     map[string]int{"used": st.PagesUsed, "free": st.PagesFree, "cached": st.PagesCached},
			"memory_bytes": st.Memory, "device_memory_bytes": st.DeviceMemory, "gpu_memory_bytes": st.GPUMemory, "backend": st.Backend, "device": st.Device,
		}
		for _, p := range plainStats {
			vars[p.name] = p.value(&st)
		}
		models[g.Model().ID] = vars
	}
	body, err := json.MarshalIndent(map[string]any{
		"cmdline":  maskedArgs(os.Args),
		"memstats": &mem,
		"cotenant": map[string]any{
			"version": s.cfg.Version, "uptime_seconds": time.Since(s.started).Seconds(), "draining": s.isDraining(),
			"requests_in_flight": running, "goroutines": runtime.NumGoroutine(), "models": models,
		},
	}, "", "\t")
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, body)
	return nil
}

// maskedArgs keeps the program's name and the names of flags, and no value.
func maskedArgs(args []string) []string {
	masked := make([]string, len(args))
	for i, a := range args {
		name, _, hasValue := strings.Cut(a, "=")
		switch {
		case i == 0:
			masked[i] = filepath.Base(a)
		case strings.HasPrefix(a, "-") && hasValue:
			masked[i] = name + "=***"
		case strings.HasPrefix(a, "--"):
			masked[i] = a
		default:
			masked[i] = "***"
		}
	}
	return masked
}
