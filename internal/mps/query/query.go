// Package query reads the state of NVIDIA's Multi-Process Service and can't change it. The control program is asked only what
// its closed table of inputs (inputs) holds, and what it means is judged by its text: it exits 0 after an unknown command.
// Daemons are found in /proc and by pid files. Nothing starts a daemon or a server, ends one, sets a value or touches a
// partition.
package query

import (
	"cotenant/internal/bounded"
	"cotenant/internal/observe"
)

// Report is what is known of MPS on this host.
type Report struct {
	// Status is supported_proven where a control program was found and said its version; unavailable where there is none.
	Status      observe.Status `json:"status"`
	Reason      string         `json:"reason,omitempty"`
	SideEffects []string       `json:"side_effects"`
	// Control is the control program's path and Version what it calls its binary version, such as 13000.
	Control string             `json:"control,omitempty"`
	Version observe.Value[int] `json:"version"`
	// Daemons are the control daemons seen in /proc, Servers the MPS servers.
	Daemons []Daemon `json:"daemons"`
	Servers []Daemon `json:"servers"`
	// Folders are the pipe folders that were looked at.
	Folders []Folder `json:"folders"`
	// Answers are what the control program said, in the order asked.
	Answers []Answer `json:"answers"`
	// Partitions is the table of `lspart`, asked only on demand.
	Partitions observe.Value[[]Partition] `json:"partitions"`
}

// Daemon is a process of MPS.
type Daemon struct {
	PID  int `json:"pid"`
	PPID int `json:"ppid"`
	// UID is the real user id; absent where /proc doesn't say.
	UID observe.Value[int] `json:"uid"`
	// State is the letter of proc(5); Z is a zombie.
	State     string   `json:"state"`
	Arguments []string `json:"arguments"`
	Mode      Mode     `json:"mode"`
	// Pipe and the other variables are from the process's environment; absent with permission denied for another user's.
	Pipe             observe.Value[string] `json:"pipe"`
	Log              observe.Value[string] `json:"log"`
	VisibleDevices   observe.Value[string] `json:"visible_devices"`
	ActivePercentage observe.Value[string] `json:"active_thread_percentage"`
}

// Mode is what a daemon's command line and environment say of it. No documented query tells a running daemon's mode.
type Mode struct {
	Daemon    bool `json:"daemon"`     // -d or -f: else it is a client of a daemon
	Static    bool `json:"static"`     // -S, --static-partitioning
	MultiUser bool `json:"multi_user"` // -multiuser-server
	Protocol  int  `json:"protocol"`   // 2 unless -p, --protocol or CUDA_MPS_PROTOCOL_VERSION say 3
}

// PIDState is what a pid file is worth.
type PIDState string

// States of a pid file.
const (
	PIDLive       PIDState = "live"
	PIDAbsent     PIDState = "absent"
	PIDMalformed  PIDState = "malformed"
	PIDUnreadable PIDState = "permission_denied"
	PIDDead       PIDState = "stale_no_such_process" // or one of another pid namespace
	PIDZombie     PIDState = "stale_zombie"
	PIDRecycled   PIDState = "stale_other_program"
	PIDElsewhere  PIDState = "stale_other_folder" // a daemon, but of another pipe folder
)

// Folder is a pipe folder.
type Folder struct {
	Path string `json:"path"`
	// Why says who named it: environment, default, process, kubernetes.
	Why    string `json:"why"`
	Exists bool   `json:"exists"`
	// Denied says that this user may not look inside.
	Denied bool               `json:"denied,omitempty"`
	Owner  observe.Value[int] `json:"owner"` // uid
	Mode   string             `json:"mode,omitempty"`
	// Socket says that the control socket is there.
	Socket   bool               `json:"socket"`
	PID      observe.Value[int] `json:"pid"`
	PIDState PIDState           `json:"pid_state"`
	// TooLong says that the socket's path exceeds 108 bytes: a daemon there fails with no better message than that it can't be
	// found.
	TooLong bool `json:"too_long,omitempty"`
}

// Kind is what an answer's text means.
type Kind string

// Kinds of answers.
const (
	Answered       Kind = "answered"
	Empty          Kind = "empty" // no text, as get_server_list says where no server runs
	NoDaemon       Kind = "no_daemon"
	NoServer       Kind = "no_server"
	UnknownCommand Kind = "unknown_command"
	Usage          Kind = "usage" // an option or syntax that this version doesn't have
	Refused        Kind = "permission_denied"
	Failed         Kind = "failed"
	Hung           Kind = "hung"
	NotStarted     Kind = "not_started"
)

// Answer is one exchange with the control program.
type Answer struct {
	Input    string          `json:"input"`
	Folder   string          `json:"folder,omitempty"`
	Kind     Kind            `json:"kind"`
	Outcome  bounded.Outcome `json:"outcome"`
	ExitCode int             `json:"exit_code"` // no evidence: 0 after an unknown command
	Text     string          `json:"text"`      // clipped
	WallUS   int64           `json:"wall_us"`

	full string
}

// Full returns the whole text.
func (a Answer) Full() string { return a.full }
