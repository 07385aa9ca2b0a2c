package probe

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"cotenant/internal/bounded"
	"cotenant/internal/container"
	"cotenant/internal/probe/evidence"
)

const guardTask = "probe-guard"

// guardVariable is in the environment of a run's guard, which is no process that a sweep ends.
const guardVariable = "COTENANT_PROBE_GUARD"

// sweepTime bounds a guard's sweep: an engine may take container.AnswerTime until it has made what it was asked for.
const sweepTime = container.AnswerTime + 20*time.Second

type guardRequest struct {
	Run    string `json:"run"`
	Folder string `json:"folder"`
	Parent int    `json:"parent"` // pid of the supervisor
}

// guard waits for its parent, the supervisor, to end, and then sweeps what it left: a supervisor that ends by itself has ended its
// guard before. It lives in a process group of its own, and no longer than its deadline.
func guard(request []byte, _ *bounded.Reporter) error {
	var req guardRequest
	if err := json.Unmarshal(request, &req); err != nil {
		return fmt.Errorf("reading the request: %w", err)
	}
	waitForEnd(req.Parent)
	// Nothing may be written to stdout or stderr from here on: nobody reads.
	entries, _, err := evidence.ReadJournal(req.Folder)
	if err != nil {
		os.Exit(1)
	}
	ctx, cancel := context.WithTimeout(context.Background(), sweepTime)
	defer cancel()
	// The workers look after their parent as we do.
	time.Sleep(4 * parentPoll)
	if _, err := os.Stat(filepath.Join(req.Folder, evidence.ManifestFile)); err == nil {
		os.Exit(0) // a cleanup was faster, and what it sealed isn't added to
	}
	j, err := evidence.OpenJournal(req.Folder, "guard")
	if err == nil {
		_ = j.Begin("sweep", 0)
	}
	swept := newSweeper(req.Run, entries, os.Environ()).sweep(ctx, false)
	if err == nil {
		text, _ := json.Marshal(swept)
		_ = j.Record(evidence.Entry{Step: "sweep", Phase: evidence.End, Detail: map[string]string{"swept": string(text)}}, true)
	}
	os.Exit(0)
	return nil
}
