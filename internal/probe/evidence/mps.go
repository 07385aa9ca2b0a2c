package evidence

import (
	"fmt"
	"slices"
	"strings"

	"cotenant/internal/observe"
)

// MPSRequest is what was asked of an MPS probe.
type MPSRequest struct {
	Percent     int   `json:"percent"`      // of the smaller client
	MemoryLimit int64 `json:"memory_limit"` // bytes, of the limited client
	// MemoryFits and MemoryExceeds are what it and the client without a limit try to allocate, in bytes.
	MemoryFits    int64 `json:"memory_fits"`
	MemoryExceeds int64 `json:"memory_exceeds"`
	Static        bool  `json:"static"` // also static partitions, where the control binary has them
}

// MPSResult is result.json of `cotenant probe mps`.
type MPSResult struct {
	SchemaVersion   int                `json:"schema_version"`
	Operation       string             `json:"operation"`
	RunID           string             `json:"run_id"`
	MutatedState    bool               `json:"mutated_state"`
	CleanupComplete bool               `json:"cleanup_complete"`
	Outcome         string             `json:"outcome"`
	Failure         string             `json:"failure"`
	GPUUUID         string             `json:"gpu_uuid"`
	DriverVersion   string             `json:"driver_version"`
	DriverRelease   string             `json:"driver_release"`
	ControlVersion  observe.Value[int] `json:"control_version"`
	TotalSMs        int                `json:"total_sms"` // of the GPU without MPS
	Request         MPSRequest         `json:"request"`
	Classic         MPSMode            `json:"classic"`
	Static          MPSMode            `json:"static"`
	Others          MPSOthers          `json:"others"`
	Health          Health             `json:"health"`
	Cleanup         Cleanup            `json:"cleanup"`
	Checks          []Check            `json:"checks"`
	Warnings        []string           `json:"warnings"`
}

// MPSMode is one daemon's life.
type MPSMode struct {
	Status observe.Status `json:"status"` // supported_proven where all was done; else why not
	Reason string         `json:"reason"`
	// Started: a daemon of ours answered.
	Started    bool        `json:"started"`
	StartedMS  int64       `json:"started_ms"`
	Exchanges  []Exchange  `json:"exchanges"` // with the control program, that changed something or asked whether it did
	Clients    []MPSClient `json:"clients"`
	Partitions []MPSPart   `json:"partitions"` // static ones
	// Servers that the daemon started, and whether they carried the run's id.
	Servers      int    `json:"servers"`
	ServersOurs  bool   `json:"servers_carry_run_id"`
	QuitMS       int64  `json:"quit_ms"`
	QuitClean    bool   `json:"quit_clean"`     // the daemon ended by itself, and its servers
	Left         int    `json:"left_processes"` // that had to be ended otherwise
	DaemonOutput string `json:"daemon_output"`
}

// Exchange is an input to the control program and its text. Its exit code is no evidence.
type Exchange struct {
	Input string `json:"input"`
	Text  string `json:"text"`
}

// MPSPart is a static partition.
type MPSPart struct {
	Chunks int    `json:"chunks"`
	SMs    int    `json:"sms"` // as listed
	Made   bool   `json:"made"`
	Listed bool   `json:"listed"`
	Gone   bool   `json:"gone"` // not listed after its removal
	Text   string `json:"text"`
}

// MPSClient is one process under the daemon.
type MPSClient struct {
	Name        string              `json:"name"`
	Environment []string            `json:"environment"` // the CUDA_MPS variables that it was given beside the pipe folder
	Outcome     string              `json:"outcome"`
	Failure     string              `json:"failure"`
	Code        int32               `json:"code"`
	MPS         observe.Value[bool] `json:"mps"`          // attribute MPS_ENABLED in the client
	SMs         int                 `json:"sm_count"`     // attribute MULTIPROCESSOR_COUNT in the client
	ResourceSMs int                 `json:"resource_sms"` // of the SM resource in the client
	Splits      []SplitTry          `json:"splits"`
	SMIDs       []int               `json:"smids"` // of a plain stream's kernels
	Correct     bool                `json:"output_correct"`
	BeganNS     int64               `json:"began_ns"` // %globaltimer
	EndedNS     int64               `json:"ended_ns"`
	FreeBytes   uint64              `json:"free_bytes"`
	TotalBytes  uint64              `json:"total_bytes"`
	Allocations []Allocation        `json:"allocations"`
	// Green are Green Contexts made in the client; GreenFailure says why not.
	Green        *Resources `json:"green"`
	GreenFailure string     `json:"green_failure"`
	GreenOverlap Overlap    `json:"green_overlap"`
	WallUS       int64      `json:"wall_us"`
}

// SplitTry is a split in a client.
type SplitTry struct {
	IgnoreCoscheduling bool   `json:"ignore_coscheduling"`
	Requested          int    `json:"requested_sms"`
	Code               int32  `json:"code"`
	Symbol             string `json:"symbol"`
	Granted            int    `json:"granted_sms"`
	Left               int    `json:"left_sms"`
}

// Allocation is one that was tried, and freed where it succeeded.
type Allocation struct {
	Bytes  int64  `json:"bytes"`
	Code   int32  `json:"code"`
	Symbol string `json:"symbol"`
}

// MPSOthers are daemons and servers that aren't ours.
type MPSOthers struct {
	Before    []int `json:"pids_before"`
	After     []int `json:"pids_after"`
	Untouched bool  `json:"untouched"`
}

// Client returns a mode's client of a name; nil for none.
func (m *MPSMode) Client(name string) *MPSClient {
	for i := range m.Clients {
		if m.Clients[i].Name == name {
			return &m.Clients[i]
		}
	}
	return nil
}

// Judge computes what follows from the rest.
func (r *MPSResult) Judge() {
	for _, m := range []*MPSMode{&r.Classic, &r.Static} {
		for i := range m.Clients {
			if g := m.Clients[i].Green; g != nil {
				m.Clients[i].GreenOverlap = OverlapOf(g.Partitions)
			}
		}
	}
	r.Others.Untouched = slices.Equal(r.Others.Before, r.Others.After)
	r.Cleanup.Judge()
	r.CleanupComplete = r.Cleanup.Complete
	r.Checks = []Check{check("completed", r.Outcome == Completed && r.Failure == "", "outcome %s %s", r.Outcome, r.Failure)}
	r.Checks = append(r.Checks, r.classicChecks()...)
	r.Checks = append(r.Checks, r.staticChecks()...)
	r.Checks = append(r.Checks, check("others_untouched", r.Others.Untouched, "before %v, after %v", r.Others.Before, r.Others.After),
		check("health_kept", r.Health.Lost == "", "%d samples %s", r.Health.Samples, r.Health.Lost))
	r.Checks = append(r.Checks, r.Cleanup.checks()...)
	r.Warnings = r.warnings()
}

// memoryCheck holds the limited client's allocations against those of a client without a limit: only what the GPU has room for shows
// that it is the limit that refuses.
func (r *MPSResult) memoryCheck(free, limited *MPSClient) Check {
	if free == nil || len(free.Allocations) != 2 || free.Allocations[0].Code != 0 || free.Allocations[1].Code != 0 {
		return skip("", fmt.Sprintf("not established: without a limit %d bytes can't be allocated either", r.Request.MemoryExceeds))
	}
	a := limited.Allocations
	ok := len(a) == 2 && a[0].Bytes < r.Request.MemoryLimit && a[0].Code == 0 && a[1].Bytes > r.Request.MemoryLimit && a[1].Code == 2
	return check("", ok, "limit %d bytes, %d free beside the context: %s; without a limit both succeed", r.Request.MemoryLimit, limited.FreeBytes, allocationsText(a))
}

func (c *MPSClient) ok() bool {
	return c != nil && c.Outcome == Completed && c.Failure == "" && c.Correct
}

// together says for how long kernels of two clients ran at once.
func together(a, b *MPSClient) int64 {
	return max(0, min(a.EndedNS, b.EndedNS)-max(a.BeganNS, b.BeganNS))
}

func (r *MPSResult) classicChecks() []Check {
	m := &r.Classic
	if !m.Started {
		return []Check{check("classic_starts", false, "%s: %s", m.Status, m.Reason)}
	}
	list := []Check{check("classic_starts", true, "answered after %d ms", m.StartedMS)}
	add := func(id string, c *MPSClient, f func(c *MPSClient) Check) {
		if !c.ok() {
			why := "did not run"
			if c != nil {
				why = c.Outcome + " " + c.Failure
			}
			list = append(list, check(id, false, "%s", why))
			return
		}
		x := f(c)
		x.ID = id
		list = append(list, x)
	}
	whole, share := m.Client("whole"), m.Client("share")
	add("whole_client", whole, func(c *MPSClient) Check {
		return check("", c.MPS.Or(true) && c.SMs == r.TotalSMs && len(c.SMIDs) == r.TotalSMs, "%d SMs told, %d seen, of %d", c.SMs, len(c.SMIDs), r.TotalSMs)
	})
	most := (r.TotalSMs*r.Request.Percent + 99) / 100
	add("share_held", share, func(c *MPSClient) Check {
		return check("", c.SMs > 0 && c.SMs <= most, "%d SMs told at %d %%, at most %d", c.SMs, r.Request.Percent, most)
	})
	add("share_only_tightens", m.Client("greedy"), func(c *MPSClient) Check {
		return check("", c.SMs > 0 && c.SMs <= most, "asked for 100 %% under a default of %d %%: %d SMs told", r.Request.Percent, c.SMs)
	})
	add("memory_limit_holds", m.Client("limited"), func(c *MPSClient) Check {
		return r.memoryCheck(whole, c)
	})
	add("priority_accepted", m.Client("below"), func(c *MPSClient) Check {
		i := slices.IndexFunc(m.Exchanges, func(e Exchange) bool { return e.Input == "get_default_client_priority" && e.Text == "1" })
		return check("", i >= 0, "the daemon reads back the priority that was set: %v", i >= 0)
	})
	add("together", m.Client("first"), func(a *MPSClient) Check {
		b := m.Client("second")
		if !b.ok() {
			return check("", false, "the second client did not run")
		}
		return check("", together(a, b) > 0, "kernels of two clients ran at once for %d ns", together(a, b))
	})
	list = append(list, greenCheck("green_in_whole", whole))
	return append(list, check("classic_quits", m.QuitClean && m.Left == 0, "quit took %d ms, %d processes had to be ended otherwise", m.QuitMS, m.Left))
}

// GreenApart reports whether the client's Green Contexts ran on SM sets that are disjoint and as large as granted.
func (c *MPSClient) GreenApart() bool {
	if c == nil || c.Green == nil || len(c.Green.Partitions) == 0 || c.GreenFailure != "" || !c.GreenOverlap.Disjoint {
		return false
	}
	for _, p := range c.Green.Partitions {
		if len(p.SMIDs) != p.Granted || !p.OutputCorrect {
			return false
		}
	}
	return true
}

func (c *MPSClient) greenText() string {
	var seen []string
	for _, p := range c.Green.Partitions {
		seen = append(seen, fmt.Sprintf("%d SMs granted, %d seen", p.Granted, len(p.SMIDs)))
	}
	return fmt.Sprintf("%s, %d in common", strings.Join(seen, "; "), len(c.GreenOverlap.SMIDs))
}

// greenCheck says whether Green Contexts could be made in a client.
func greenCheck(id string, c *MPSClient) Check {
	if c == nil || c.Green == nil {
		return check(id, false, "none were made")
	}
	return check(id, c.GreenApart(), "%d Green Contexts, %d SMs in common %s", len(c.Green.Partitions), len(c.GreenOverlap.SMIDs), c.GreenFailure)
}

func allocationsText(list []Allocation) string {
	var texts []string
	for _, a := range list {
		texts = append(texts, fmt.Sprintf("%d bytes %s", a.Bytes, a.Symbol))
	}
	return strings.Join(texts, ", ")
}

func (r *MPSResult) staticChecks() []Check {
	m := &r.Static
	if !m.Started {
		if r.Request.Static && m.Status != observe.BlockedByRuntimeVersion && m.Status != observe.Unknown {
			return []Check{check("static_starts", false, "%s: %s", m.Status, m.Reason)}
		}
		return []Check{skip("static_starts", m.Reason)}
	}
	list := []Check{check("static_starts", true, "answered after %d ms", m.StartedMS)}
	a, b := m.Client("partition 0"), m.Client("partition 1")
	made := len(m.Partitions) == 2
	gone := made
	for _, p := range m.Partitions {
		made = made && p.Made && p.Listed && p.SMs > 0
		gone = gone && p.Gone
	}
	list = append(list, check("partitions_made", made, "%d of 2 made and listed", len(m.Partitions)))
	if made && a.ok() && b.ok() {
		list = append(list, check("clients_in_partitions", a.SMs == m.Partitions[0].SMs && b.SMs == m.Partitions[1].SMs && len(a.SMIDs) <= a.SMs && len(b.SMIDs) <= b.SMs,
			"%d and %d SMs told, %d and %d seen, %d and %d listed", a.SMs, b.SMs, len(a.SMIDs), len(b.SMIDs), m.Partitions[0].SMs, m.Partitions[1].SMs))
		common := 0
		for _, id := range a.SMIDs {
			if slices.Contains(b.SMIDs, id) {
				common++
			}
		}
		list = append(list, check("partitions_disjoint", common == 0, "%d SMs in common", common))
	} else {
		list = append(list, check("clients_in_partitions", false, "the clients did not run"))
	}
	if u := m.Client("unbound"); u != nil {
		list = append(list, check("unbound_client_refused", u.Code != 0, "code %d", u.Code))
	}
	list = append(list, check("partitions_removed", gone, "not listed after removal"))
	return append(list, check("static_quits", m.QuitClean && m.Left == 0, "quit took %d ms, %d processes had to be ended otherwise", m.QuitMS, m.Left))
}

func (r *MPSResult) warnings() []string {
	w := []string{}
	if s := r.Classic.Client("share"); s.ok() && len(s.SMIDs) > s.SMs {
		w = append(w, fmt.Sprintf("the client with a share of %d SMs ran on %d: a percentage is a bound at a time, not a fixed set", s.SMs, len(s.SMIDs)))
	}
	if s := r.Classic.Client("share"); s != nil && s.GreenFailure != "" {
		w = append(w, "Green Contexts in a client with a share: "+s.GreenFailure)
	} else if s != nil && s.Green != nil && !s.GreenApart() {
		w = append(w, "Green Contexts in a client with a share are no partitions of it: "+s.greenText())
	}
	if !r.Static.Started {
		w = append(w, "static partitioning: "+r.Static.Reason)
	}
	if r.Health.Xid.Status != observe.SupportedProven {
		w = append(w, "Xids could not be watched: "+r.Health.Xid.Reason)
	}
	return w
}
