package embedded

import "unsafe"

// readOnly views a string's bytes without a copy; whoever writes to them crashes.
func readOnly(s string) []byte { return unsafe.Slice(unsafe.StringData(s), len(s)) }
