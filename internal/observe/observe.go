// Package observe holds what every source of facts shares: an observation is a value or the reason why there is none, and a
// verdict is one status of a closed list.
package observe

// Value is one observation. Absent and zero are different things: where Value is nil nothing was observed and Reason says why.
type Value[T any] struct {
	// Value is what was observed.
	Value *T `json:"value,omitempty"`
	// Call is what was asked, such as a function's name; empty where the caller's field name says it.
	Call string `json:"call,omitempty"`
	// Code is the result code of a call that failed; 0 where none was made or it succeeded.
	Code int32 `json:"code,omitempty"`
	// Reason is the symbolic name of Code, or a phrase such as "not exported by this library"; empty where there is a value.
	Reason string `json:"reason,omitempty"`
}

// Got returns an observed value.
func Got[T any](call string, v T) Value[T] { return Value[T]{Value: &v, Call: call} }

// None returns an absent value and why it is absent.
func None[T any](call string, code int32, reason string) Value[T] {
	return Value[T]{Call: call, Code: code, Reason: reason}
}

// Get returns the value and whether there is one.
func (v Value[T]) Get() (T, bool) {
	if v.Value == nil {
		var zero T
		return zero, false
	}
	return *v.Value, true
}

// Or returns the value, or def where there is none.
func (v Value[T]) Or(def T) T {
	if v.Value == nil {
		return def
	}
	return *v.Value
}

// OK reports whether there is a value.
func (v Value[T]) OK() bool { return v.Value != nil }

// Status is a verdict, or the state of a source.
type Status string

// The closed list of statuses.
const (
	SupportedProven         Status = "supported_proven"           // it was done here
	SupportedDeclared       Status = "supported_declared"         // the driver says so; it was not done
	Unsupported             Status = "unsupported"                // this hardware can't
	Unavailable             Status = "unavailable"                // not installed, or not here
	Unknown                 Status = "unknown"                    // it could not be told; the reason says why
	BlockedByRuntimeVersion Status = "blocked_by_runtime_version" // a version below the floor
	BlockedByEnvironment    Status = "blocked_by_environment"     // platform, container, sandbox, build
	BlockedByMode           Status = "blocked_by_mode"            // MIG, compute or daemon mode
	BlockedByDeviceState    Status = "blocked_by_device_state"    // lost, reset required, fabric not ready
	PermissionDenied        Status = "permission_denied"
	Busy                    Status = "busy" // held exclusively by someone
	Hung                    Status = "hung" // no answer by the deadline
)

// Statuses returns the closed list.
func Statuses() []Status {
	return []Status{SupportedProven, SupportedDeclared, Unsupported, Unavailable, Unknown, BlockedByRuntimeVersion,
		BlockedByEnvironment, BlockedByMode, BlockedByDeviceState, PermissionDenied, Busy, Hung}
}

// Valid reports whether s is one of the closed list.
func (s Status) Valid() bool {
	for _, t := range Statuses() {
		if s == t {
			return true
		}
	}
	return false
}

// MaxText is how many bytes of foreign text a piece of evidence keeps.
const MaxText = 200

// Clip returns text cut to MaxText bytes at a rune's boundary, control characters replaced by spaces.
func Clip(text string) string {
	clipped := make([]rune, 0, MaxText)
	size := 0
	for _, r := range text {
		if r < ' ' || r == 0x7f {
			r = ' '
		}
		if size += len(string(r)); size > MaxText {
			break
		}
		clipped = append(clipped, r)
	}
	return string(clipped)
}
