package evidence

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"slices"

	"cotenant/internal/kernels"
)

// ErrUnreadable is a folder that isn't a probe's evidence, or can't be read as such.
var ErrUnreadable = errors.New("can't be read as a probe's evidence")

// RuleResult is what a rule says of a folder.
type RuleResult struct {
	Rule   string `json:"rule"`
	Title  string `json:"title"`
	Result string `json:"result"` // pass, fail, not_applicable
	Detail string `json:"detail"`
}

// Report is the verdict on a folder.
type Report struct {
	SchemaVersion int    `json:"schema_version"`
	Operation     string `json:"operation"` // "verify"
	Evidence      string `json:"evidence"`  // operation of the manifest
	Probe         string `json:"probe"`
	RunID         string `json:"run_id"`
	Outcome       string `json:"outcome"`
	// CleanupComplete is the manifest's.
	CleanupComplete bool `json:"cleanup_complete"`
	// Holds: the documents agree with each other and with the journal. What they establish is another thing.
	Holds       bool         `json:"holds"`
	Results     []RuleResult `json:"results"`
	Establishes []string     `json:"establishes"`
	DoesNot     []string     `json:"does_not"`
}

// Failed lists the rules that failed.
func (r *Report) Failed() []RuleResult {
	var out []RuleResult
	for _, x := range r.Results {
		if x.Result == Fail {
			out = append(out, x)
		}
	}
	return out
}

// ExitCode is 0 where every rule holds, else 3.
func (r *Report) ExitCode() int {
	if r.Holds {
		return 0
	}
	return 3
}

// rule is one thing that a folder's documents must agree on.
type rule struct {
	id, title, explain string
	check              func(f *folder) (result, detail string)
}

var rules = []rule{
	{"P-FILES", "every file is the one that was sealed", "Size and SHA-256 of each file are those of the manifest, and no file is there that isn't in it but cleanup.json.", (*folder).filesRule},
	{"P-IDS", "all documents are of one run", "Run id, GPU, probe and start are the same in plan, result and manifest, and the journal's run is the same.", (*folder).idsRule},
	{"P-GATES", "the verdict follows from the gates", "go is yes where every gate is yes, not applicable or overridden by a flag that it names; the overrides are those; a refused run made nothing.", (*folder).gatesRule},
	{"P-JOURNAL", "the journal is whole", "Each writer's entries are numbered from 1 without a gap, and each end has its beginning.", (*folder).journalRule},
	{"P-BEFORE", "nothing was made before it was decided", "The supervisor's entry stands first, and no worker began in a run that was refused.", (*folder).beforeRule},
	{"P-COMPUTED", "checks, overlap and cleanup follow from the figures", "Overlap, figures of cycles, cleanup_complete, checks and warnings are computed again from the rest of the result.", (*folder).computedRule},
	{"P-WITNESS", "the kernel's output is the right one", "Each partition's output hash is computed again from seed, rounds, blocks and threads, and output_correct is that.", (*folder).witnessRule},
	{"P-SMS", "SM sets are sets", "%smid values are ascending and distinct, and there are blocks enough for each.", (*folder).smsRule},
	{"P-STEPS", "the result counts what the journal holds", "Green Contexts and streams made and destroyed are those whose steps the journal shows.", (*folder).stepsRule},
	{"P-EXIT", "the exit code follows", "0 where the checks pass and cleanup is complete, 1 where something was made and cleanup isn't, 3 where a check failed or a gate refused.", (*folder).exitRule},
	{"P-CONTAINER", "what ran is what was audited", "The container's service was refused by no rule, and image, program and arguments are those of the plan, and the image is the one that the gate names.", (*folder).containerRule},
	{"P-ROLE", "the GPU's role is the topology's", "Role, host and state are the same in plan and manifest, they are what inspect.json binds, and the gate's answer is that.", (*folder).roleRule},
	{"P-KERNELS", "the kernels are this program's", "The PTX's SHA-256 in the manifest and the result is that of the PTX that this program carries.", (*folder).kernelsRule},
}

// Rules returns the rules' ids, titles and explanations.
func Rules() [][3]string {
	var list [][3]string
	for _, r := range rules {
		list = append(list, [3]string{r.id, r.title, r.explain})
	}
	return list
}

// Verify judges a folder from its files alone.
func Verify(dir string) (*Report, error) {
	f, err := open(dir)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnreadable, err)
	}
	return f.judge(), nil
}

func (f *folder) judge() *Report {
	r := &Report{SchemaVersion: SchemaVersion, Operation: "verify", Evidence: f.manifest.Operation, Probe: f.manifest.Probe, RunID: f.manifest.RunID,
		Outcome: f.manifest.Outcome, CleanupComplete: f.manifest.CleanupComplete, Holds: true, Results: []RuleResult{}, Establishes: []string{}, DoesNot: []string{}}
	for _, rule := range rules {
		result, detail := rule.check(f)
		r.Results = append(r.Results, RuleResult{rule.id, rule.title, result, detail})
		r.Holds = r.Holds && result != Fail
	}
	f.claims(r)
	return r
}

func fail(format string, args ...any) (string, string) { return Fail, fmt.Sprintf(format, args...) }

func (f *folder) filesRule() (string, string) {
	if f.public {
		return f.originalsRule()
	}
	named := []string{ManifestFile, CleanupFile}
	for _, x := range f.manifest.Files {
		content, ok := f.files[x.Name]
		if !ok {
			return fail("%s is missing", x.Name)
		}
		if got := Hash(x.Name, content); got != x {
			return fail("%s has %d bytes and SHA-256 %s, sealed were %d and %s", x.Name, got.Bytes, got.SHA256, x.Bytes, x.SHA256)
		}
		if x.Name == InspectFile && x.SHA256 != f.manifest.TopologySHA256 {
			return fail("topology_sha256 isn't that of %s", InspectFile)
		}
		named = append(named, x.Name)
	}
	entries, err := os.ReadDir(f.dir)
	if err != nil {
		return fail("%v", err)
	}
	for _, e := range entries {
		if !slices.Contains(named, e.Name()) {
			return fail("%s isn't in the manifest", e.Name())
		}
	}
	return Pass, ""
}

func (f *folder) idsRule() (string, string) {
	m, p := f.manifest, f.plan
	if m.RunID != p.RunID || m.GPUUUID != p.GPUUUID || m.Probe != p.Probe || m.Started != p.Started {
		return fail("manifest and plan are of different runs")
	}
	if !f.public && m.GPULabel != Label(m.GPUUUID) {
		return fail("the label isn't that of the UUID")
	}
	if p.Operation != PlanOperation || p.SchemaVersion != SchemaVersion {
		return fail("plan: operation %q, version %d", p.Operation, p.SchemaVersion)
	}
	if f.entries[0].Detail["run"] != m.RunID {
		return fail("the journal is of another run")
	}
	if c := f.create; c != nil && (c.RunID != m.RunID || c.GPUUUID != m.GPUUUID || c.Operation != CreateOperation || c.SchemaVersion != SchemaVersion) {
		return fail("the result is of another run")
	}
	if c := f.contained; c != nil && (c.RunID != m.RunID || c.GPUUUID != m.GPUUUID || c.Operation != ContainerOperation || c.SchemaVersion != SchemaVersion) {
		return fail("the result is of another run")
	}
	if c := f.mps; c != nil && (c.RunID != m.RunID || c.GPUUUID != m.GPUUUID || c.Operation != MPSOperation || c.SchemaVersion != SchemaVersion) {
		return fail("the result is of another run")
	}
	if c := f.measure; c != nil && (c.RunID != m.RunID || c.GPUUUID != m.GPUUUID || c.Operation != MeasureOperation || c.SchemaVersion != SchemaVersion) {
		return fail("the result is of another run")
	}
	return Pass, ""
}

func (f *folder) gatesRule() (string, string) {
	var flags []string
	for _, g := range f.plan.Gates {
		if !slices.Contains([]string{Yes, No, Unknown, NotApplicable}, g.Answer) {
			return fail("gate %s: answer %q", g.ID, g.Answer)
		}
		if g.Overridden && (g.Override == "" || g.Passes() && (g.Answer == Yes || g.Answer == NotApplicable)) {
			return fail("gate %s is overridden and can't be", g.ID)
		}
		if g.Overridden && !slices.Contains(flags, g.Override) {
			flags = append(flags, g.Override)
		}
	}
	if f.plan.Go != Go(f.plan.Gates) {
		return fail("go is %v, the gates say %v", f.plan.Go, Go(f.plan.Gates))
	}
	if !slices.Equal(flags, f.plan.Overrides) {
		return fail("overrides are %v, the gates say %v", f.plan.Overrides, flags)
	}
	if f.plan.Go == (f.manifest.Outcome == Refused) {
		return fail("go is %v and the outcome %s", f.plan.Go, f.manifest.Outcome)
	}
	return Pass, ""
}

func (f *folder) journalRule() (string, string) {
	if f.torn {
		if f.manifest.Outcome != Unfinished {
			return fail("the last line isn't whole")
		}
	}
	seq := make(map[string]int64)
	open := make(map[string]int)
	for i, e := range f.entries {
		who := fmt.Sprintf("%s %d", e.By, e.PID)
		if seq[who]++; e.Seq != seq[who] {
			return fail("line %d: entry %d of %s, want %d", i+1, e.Seq, who, seq[who])
		}
		key := fmt.Sprintf("%s %s %d", who, e.Step, e.Index)
		switch e.Phase {
		case Begin:
			open[key]++
		case End:
			if open[key]--; open[key] < 0 {
				return fail("line %d: %s ended without a beginning", i+1, e.Step)
			}
		}
	}
	return Pass, ""
}

func (f *folder) beforeRule() (string, string) {
	e := f.entries[0]
	if e.By != "supervisor" || e.Step != "run" || e.Phase != Begin {
		return fail("the journal begins with %s of %s", e.Step, e.By)
	}
	worked := slices.ContainsFunc(f.entries, func(e Entry) bool { return e.By == "worker" || e.By == "client" })
	if worked && !f.plan.Go {
		return fail("a worker began in a run that was refused")
	}
	if f.manifest.Outcome == Refused && (f.hasResult() || f.manifest.Worker != nil) {
		return fail("a refused run has a result")
	}
	return Pass, ""
}

func (f *folder) computedRule() (string, string) {
	var again any
	switch {
	case f.create != nil:
		c := *f.create
		if f.create.Cycles != nil {
			cycles := *f.create.Cycles
			c.Cycles = &cycles
		}
		c.Judge()
		again = &c
	case f.contained != nil:
		var c ContainerResult
		if err := Decode(ResultFile, f.files[ResultFile], &c); err != nil {
			return fail("%v", err)
		}
		c.Judge()
		again = &c
	case f.mps != nil:
		var c MPSResult
		if err := Decode(ResultFile, f.files[ResultFile], &c); err != nil {
			return fail("%v", err)
		}
		c.Judge()
		again = &c
	case f.measure != nil:
		c := *f.measure
		c.Judge()
		again = &c
	default:
		return NotApplicable, "no result"
	}
	content, err := Encode(again)
	if err != nil {
		return fail("%v", err)
	}
	if !bytes.Equal(content, f.files[ResultFile]) {
		return fail("computed again, the result differs %s", firstDifference(content, f.files[ResultFile]))
	}
	if clean := f.clean(); clean != f.manifest.CleanupComplete {
		return fail("cleanup_complete is %v in the result, %v in the manifest", clean, f.manifest.CleanupComplete)
	}
	return Pass, ""
}

func (f *folder) clean() bool {
	return f.create != nil && f.create.CleanupComplete || f.mps != nil && f.mps.CleanupComplete || f.contained != nil && f.contained.CleanupComplete ||
		f.measure != nil && f.measure.CleanupComplete
}

func (f *folder) witnessRule() (string, string) {
	c := f.created()
	if c == nil || len(c.Resources.Partitions) == 0 {
		return NotApplicable, "no partitions"
	}
	w := c.Witness
	if w.Threads == 0 || w.Threads > 1024 || w.Threads%32 != 0 || w.Rounds > 1<<10 {
		return fail("threads %d, rounds %d", w.Threads, w.Rounds)
	}
	work := int64(0)
	for i, p := range c.Resources.Partitions {
		if p.OutputSHA256 == "" && !p.OutputCorrect {
			continue // the run ended before
		}
		// Beyond any GPU: a forged figure must not keep a verifier busy.
		if work += int64(p.Blocks) * int64(w.Threads) * int64(max(1, w.Rounds)); p.Blocks < 0 || p.Blocks > 1<<16 || work > 1<<30 {
			return fail("partition %d: %d blocks", i, p.Blocks)
		}
		h := sha256.New()
		for b := range uint32(p.Blocks) {
			var word [4]byte
			binary.LittleEndian.PutUint32(word[:], kernels.WitnessValue(w.Seed+uint32(i), w.Rounds, b, w.Threads))
			h.Write(word[:])
		}
		if right := hex.EncodeToString(h.Sum(nil)) == p.OutputSHA256; right != p.OutputCorrect {
			return fail("partition %d: output_correct is %v, computed again %v", i, p.OutputCorrect, right)
		}
	}
	return Pass, ""
}

func (f *folder) smsRule() (string, string) {
	c := f.created()
	if c == nil {
		return NotApplicable, "no partitions"
	}
	for i, p := range c.Resources.Partitions {
		if p.Index != i {
			return fail("partition %d stands at %d", p.Index, i)
		}
		for k, id := range p.SMIDs {
			if id < 0 || k > 0 && id <= p.SMIDs[k-1] {
				return fail("partition %d: %%smid %d at %d", i, id, k)
			}
		}
		n := len(p.SMIDs)
		if n > 0 && (p.LeastBlocks < 1 || p.LeastBlocks > p.MostBlocks || n*p.LeastBlocks > p.Blocks || n*p.MostBlocks < p.Blocks) {
			return fail("partition %d: %d blocks on %d SMs, %d to %d each", i, p.Blocks, n, p.LeastBlocks, p.MostBlocks)
		}
	}
	return Pass, ""
}

// stepsRule holds the worker's steps against the result's counts. A cycle is one step and makes the same again.
func (f *folder) stepsRule() (string, string) {
	if f.create == nil || f.create.Cleanup.API.Verdict != "complete" {
		return NotApplicable, "the worker did not undo everything by itself"
	}
	made, undone := 0, 0
	for _, e := range f.entries {
		if e.By != "worker" || e.Phase != End || e.Error != "" {
			continue
		}
		switch e.Step {
		case "create_green_context", "create_stream", "create_helper_context":
			made++
		case "destroy_green_context", "destroy_stream", "destroy_helper_context":
			undone++
		case "create_workqueue_context":
			made++
			undone++
		}
	}
	cycles := 0
	if f.create.Cycles != nil {
		cycles = len(f.create.Cycles.Rows)
	}
	if made != undone {
		return fail("the journal shows %d made and %d destroyed", made, undone)
	}
	a := f.create.Cleanup.API
	if a.Created != a.Destroyed || a.Created < made || cycles == 0 && a.Created != made {
		return fail("the journal shows %d made outside cycles, the result counts %d made and %d destroyed", made, a.Created, a.Destroyed)
	}
	return Pass, ""
}

func (f *folder) exitRule() (string, string) {
	m := f.manifest
	want := []int{}
	switch {
	case m.Outcome == Refused:
		want = append(want, 3)
	case m.Outcome == Unfinished:
		want = append(want, 1)
	case f.contained != nil:
		code, _ := f.contained.Exit()
		want = append(want, code)
	case !f.hasResult(): // it ended before anything was made, or in making its folder
		want = append(want, 1, 4)
	default:
		checks, mutated, code := f.concluded()
		switch {
		case mutated && !f.clean():
			want = append(want, 1)
		case m.Outcome == Interrupted:
			want = append(want, 130)
		case !Passed(checks):
			if want = append(want, 3); code != 0 {
				want = append(want, 4) // blocked by the environment
			}
		default:
			want = append(want, 0)
		}
	}
	if !slices.Contains(want, m.ExitCode) {
		return fail("exit code %d, want one of %v", m.ExitCode, want)
	}
	return Pass, ""
}

func (f *folder) kernelsRule() (string, string) {
	if len(f.manifest.Kernels) == 0 {
		return NotApplicable, "none were loaded"
	}
	for _, k := range f.manifest.Kernels {
		if c := f.created(); c != nil && c.Witness.Module == k.Name && c.Witness.SHA256 != k.SHA256 {
			return fail("%s has one SHA-256 in the result and another in the manifest", k.Name)
		}
		_, info, err := kernels.Module(k.Name)
		if err != nil || info.SHA256 != k.SHA256 {
			return NotApplicable, k.Name + " is of another version of this program"
		}
	}
	return Pass, ""
}
