package query

import (
	"context"
	"strconv"
	"strings"
	"time"

	"cotenant/internal/bounded"
	"cotenant/internal/observe"
)

// Input is one thing that the control program may be asked. Only the constants below are inputs.
type Input uint8

// The inputs.
const (
	Version Input = iota
	ServerList
	ServerStatus // of a server's pid
	ClientList   // of a server's pid
	DefaultPercentage
	Percentage // of a server's pid
	DefaultPriority
	Processes
	DeviceQuery
	PartitionList // makes the daemon initialise CUDA

	// Inputs of protocol 3, which a daemon of release 615 and later can speak instead.
	V3ServerList
	V3DeviceList
	V3PartitionList

	inputCount
)

// input is how an Input is put: as arguments, or as text on stdin.
type input struct {
	args  []string
	stdin string
	pid   bool // stdin ends in a server's pid
}

// inputs is the closed table. The test TestInputsAreClosed keeps it read-only.
var inputs = [inputCount]input{
	Version:           {args: []string{"-v"}},
	ServerList:        {stdin: "get_server_list"},
	ServerStatus:      {stdin: "get_server_status", pid: true},
	ClientList:        {stdin: "get_client_list", pid: true},
	DefaultPercentage: {stdin: "get_default_active_thread_percentage"},
	Percentage:        {stdin: "get_active_thread_percentage", pid: true},
	DefaultPriority:   {stdin: "get_default_client_priority"},
	Processes:         {stdin: "ps"},
	DeviceQuery:       {stdin: "device_query --csv"},
	PartitionList:     {stdin: "lspart"},
	V3ServerList:      {args: []string{"server", "list", "--format=csv,noheader"}},
	V3DeviceList:      {args: []string{"device", "list", "--format=csv,noheader"}},
	V3PartitionList:   {args: []string{"sm-partition", "list", "--all", "--format=csv,noheader"}},
}

// String returns the input as the control program gets it, without a pid.
func (i Input) String() string {
	if i >= inputCount {
		return "no input"
	}
	if in := inputs[i]; in.stdin != "" {
		return in.stdin
	}
	return strings.Join(inputs[i].args, " ")
}

// Inputs returns all of them.
func Inputs() []Input {
	all := make([]Input, inputCount)
	for i := range all {
		all[i] = Input(i)
	}
	return all
}

// Control asks a control program.
type Control struct {
	Path string
	// Env is the environment; CUDA_MPS_PIPE_DIRECTORY is set to Folder where that isn't empty.
	Env     []string
	Folder  string
	Timeout time.Duration // for each question; 0 means bounded.DefaultTimeout
}

// Ask puts one input. pid is used by the inputs that take one and must be positive there.
func (c Control) Ask(ctx context.Context, i Input, pid int) Answer {
	a := Answer{Input: i.String(), Folder: c.Folder, Kind: NotStarted, Outcome: bounded.NotStarted, ExitCode: -1}
	if i >= inputCount || inputs[i].pid && pid <= 0 {
		a.Text = "not an input"
		return a
	}
	cmd := bounded.Command{Path: c.Path, Args: inputs[i].args, Env: c.Env, Timeout: c.Timeout}
	if c.Folder != "" {
		cmd.Env = append(bounded.WithoutVariables(c.Env, "CUDA_MPS_PIPE_DIRECTORY"), "CUDA_MPS_PIPE_DIRECTORY="+c.Folder)
	}
	if text := inputs[i].stdin; text != "" {
		if inputs[i].pid {
			text += " " + strconv.Itoa(pid)
			a.Input = text
		}
		cmd.Stdin = text + "\n"
	}
	r := bounded.Run(ctx, cmd)
	a.Outcome, a.ExitCode, a.WallUS = r.Outcome, r.ExitCode, r.WallUS
	a.full = r.Text()
	a.Text = observe.Clip(a.full)
	a.Kind = judge(i, r, a.full)
	if r.Err != nil {
		a.Text = observe.Clip(r.Err.Error())
	}
	return a
}

// phrases are what the control program says, with what each means; the first that the text holds decides. Compared in lower
// case. Sources: NVIDIA's MPS documentation, and answers measured on control binaries 13000.
var phrases = []struct {
	text string
	kind Kind
}{
	{"cannot find mps control daemon process", NoDaemon},
	{"unknown command", UnknownCommand},
	{"unrecognized option", Usage},
	{"unrecognized command", UnknownCommand},
	{"invalid command", UnknownCommand},
	{"usage:", Usage},
	{"server not found", NoServer},
	{"no server", NoServer},
	{"permission denied", Refused},
	{"not permitted", Refused},
	{"did not send valid credentials", Refused},
	{"failed to", Failed},
	{"cuda_error_", Failed},
	{"error:", Failed},
}

// table reports whether the text is the table that an input has for an answer, whatever words its rows hold.
func table(i Input, text string) bool {
	ok := false
	switch i {
	case Processes:
		_, ok = ParseProcesses(text)
	case DeviceQuery:
		_, ok = ParseDeviceQuery(text)
	case PartitionList:
		_, ok = ParsePartitions(text)
	}
	return ok
}

func judge(i Input, r bounded.Result, text string) Kind {
	if r.Hung() {
		return Hung
	}
	if r.Outcome == bounded.NotStarted || r.Outcome == bounded.Canceled {
		return NotStarted
	}
	if table(i, text) {
		return Answered
	}
	low := strings.ToLower(text)
	for _, p := range phrases {
		if strings.Contains(low, p.text) {
			return p.kind
		}
	}
	switch {
	case r.Outcome == bounded.Signaled:
		return Failed
	case text == "":
		return Empty
	}
	return Answered
}
