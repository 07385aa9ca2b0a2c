package topology

import (
	"errors"
	"regexp"
	"slices"
	"strings"
)

// uuid is what NVML calls a device: R470 and later name a MIG device by a UUID of its own, before that by its GPU's and two
// numbers.
var (
	uuidForm      = regexp.MustCompile(`^(GPU|MIG)-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)
	legacyMIGForm = regexp.MustCompile(`^MIG-GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}/[0-9]{1,3}/[0-9]{1,3}$`)
)

// ParseUUID returns a device's UUID in the spelling that the driver uses. A prefix isn't enough: it may name another GPU
// tomorrow.
func ParseUUID(s string) (string, error) {
	head, rest, ok := strings.Cut(s, "-")
	u := strings.ToUpper(head) + "-" + strings.ToLower(rest)
	if after, legacy := strings.CutPrefix(u, "MIG-gpu-"); legacy {
		u = "MIG-GPU-" + after
	}
	switch {
	case ok && (uuidForm.MatchString(u) || legacyMIGForm.MatchString(u)):
		return u, nil
	case strings.Contains(strings.ToUpper(s), "REPLACE"), strings.Contains(strings.ToUpper(s), "REDACTED"), strings.Contains(s, "…"):
		return "", errors.New("is a placeholder; put the UUID that `cotenant inspect` shows on that host")
	case len(s) > 0 && strings.Trim(s, "0123456789") == "":
		return "", errors.New("is an index; an index changes between boots, name the GPU by its UUID")
	case ok && (strings.EqualFold(head, "GPU") || strings.EqualFold(head, "MIG")):
		return "", errors.New("malformed UUID; want GPU- or MIG- and the whole 8-4-4-4-12 hexadecimal digits")
	}
	return "", errors.New("not a GPU's UUID; want GPU- or MIG- and 8-4-4-4-12 hexadecimal digits, as `cotenant inspect` shows it")
}

// badName says why s is no name of a host or role; empty where it is one.
func badName(s string) string {
	if len(s) == 0 || len(s) > 63 {
		return "wants 1 to 63 characters"
	}
	for i, r := range s {
		letter := r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9'
		if !letter && (i == 0 || !strings.ContainsRune("-_.", r)) {
			return "wants letters, digits, '-', '_' and '.', a letter or digit first"
		}
	}
	return ""
}

// isSecretName tells a field that would hold a secret, so that the error can say why it is refused.
func isSecretName(key string) bool {
	k := strings.ToLower(strings.NewReplacer("-", "_", ".", "_").Replace(key))
	for _, word := range []string{"password", "passwd", "passphrase", "secret", "token", "api_key", "apikey", "credential", "private_key", "access_key", "bearer"} {
		if strings.Contains(k, word) {
			return true
		}
	}
	return false
}

var secretValue = regexp.MustCompile(`(?i)-----BEGIN |^(sk|pk|hf|ghp|gho|ghs|glpat|xox[abp]|nvapi|AKIA)[-_]?[A-Za-z0-9_-]{16,}$|^bearer |://[^/@\s]+:[^/@\s]+@`)

// isSecretValue tells a value that has the shape of a key, a token or a URL with a password.
func isSecretValue(s string) bool { return secretValue.MatchString(s) }

// runtimeNames are fields that describe a moment, or that only the driver can know.
var runtimeNames = []string{"index", "ordinal", "minor", "pid", "pids", "processes", "status", "state", "driver", "driver_version", "cuda_version",
	"memory", "memory_used", "memory_free", "memory_total", "used_bytes", "free_bytes", "total_bytes", "utilization", "temperature", "power", "power_mw",
	"compute_mode", "mig_mode", "mig", "persistence_mode", "sm_count", "compute_capability", "pci", "pci_bus_id", "bus_id", "name", "clocks",
	"last_seen", "updated_at", "observed_at", "timestamp", "verdict", "verdicts", "mechanisms", "health"}

func isRuntimeName(key string) bool {
	k := strings.ToLower(strings.ReplaceAll(key, "-", "_"))
	return slices.Contains(runtimeNames, k) || strings.HasPrefix(k, "observed") || strings.HasPrefix(k, "current_") || strings.HasPrefix(k, "runtime_")
}
