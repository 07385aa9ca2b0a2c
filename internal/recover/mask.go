package recover

import (
	"net/url"
	"regexp"
	"strings"
)

// masked stands for a value that was left out.
const masked = "[masked]"

// Words of a flag's or a variable's name by which its value may be a secret. Names are taken apart at - _ . and between letters
// of other case, so that --tokenizer and --max-tokens aren't meant.
var secretWords = map[string]bool{"key": true, "keys": true, "apikey": true, "token": true, "secret": true, "secrets": true, "password": true, "passwd": true, "passphrase": true,
	"pass": true, "pwd": true, "credential": true, "credentials": true, "auth": true, "authorization": true, "bearer": true, "cookie": true, "cookies": true, "header": true,
	"headers": true, "signature": true, "salt": true, "nonce": true, "webhook": true, "dsn": true, "pin": true, "user": true, "login": true}

// Last words of a name by which its value is a place, not the secret itself.
var placeWords = map[string]bool{"file": true, "path": true, "dir": true, "folder": true}

var (
	wordEdge = regexp.MustCompile(`[-_.]+|([a-z0-9])([A-Z])`)
	// Anything in a longer argument (JSON, a query, a header) that names a secret and gives it a value.
	inside = regexp.MustCompile(`(?i)(key|token|secret|passw(or)?d|authorization|bearer|credential|cookie)s?["']?\s*[:= ]\s*\S`)
	// Values that look like secrets wherever they stand: known prefixes, JSON web tokens, PEM.
	shapes = regexp.MustCompile(`\b(sk|pk|rk|hf|gsk|xai|nvapi|ghp|gho|ghs|glpat|xox[abp]|AKIA|ASIA)[-_A-Za-z0-9]{12,}|\beyJ[\w-]{8,}\.[\w-]{8,}|-----BEGIN `)
)

// secretName reports whether the value of a flag or variable of this name may be a secret.
func secretName(name string) bool {
	words := strings.Fields(strings.ToLower(wordEdge.ReplaceAllString(strings.TrimLeft(name, "-"), "$1 $2")))
	if len(words) == 0 || len(words) > 1 && placeWords[words[len(words)-1]] {
		return false
	}
	for _, w := range words {
		if secretWords[w] {
			return true
		}
	}
	return false
}

// shortSecret lists flags of one letter that programs are seen to take a key, a header or a password by.
var shortSecret = map[string]bool{"-H": true, "-k": true, "-u": true, "-P": true}

// mask returns arguments fit to be shown, and how many of them had a value masked. Of an argument NAME=VALUE only the name stays; the
// argument behind a flag with a secret's name goes, whatever it is. Too much may go, never too little for what is known here.
func mask(argv []string) ([]string, int64) {
	out, count := make([]string, 0, len(argv)), int64(0)
	next := false // the last argument was a flag whose value follows
	for _, arg := range argv {
		shown := arg
		switch {
		case next && !strings.HasPrefix(arg, "--"):
			shown, next = masked, false
		default:
			shown = maskOne(arg)
			next = strings.HasPrefix(arg, "-") && !strings.Contains(arg, "=") && (secretName(arg) || shortSecret[arg])
		}
		if shown != arg {
			count++
		}
		out = append(out, plain(shown))
	}
	return out, count
}

func maskOne(arg string) string {
	name, value, assigned := strings.Cut(arg, "=")
	switch {
	case assigned && !strings.HasPrefix(arg, "-") && !strings.ContainsAny(name, " /?:{"):
		return name + "=" + masked // NAME=VALUE, as env(1) takes it
	case assigned && strings.HasPrefix(arg, "-") && secretName(name):
		return name + "=" + masked
	case assigned && strings.HasPrefix(arg, "-") && !suspicious(name):
		return name + "=" + maskURL(value)
	case strings.HasPrefix(arg, "-H") && len(arg) > 2:
		return "-H" + masked // as curl takes a header
	}
	return maskURL(arg)
}

// suspicious reports whether a value looks like a secret or holds one. A path may hold a digest.
func suspicious(value string) bool {
	path := strings.HasPrefix(value, "/") || strings.HasPrefix(value, "./") || strings.HasPrefix(value, "../") || strings.HasPrefix(value, "~/")
	return inside.MatchString(value) || shapes.MatchString(value) || !path && random(value)
}

// random reports whether a value has the look of a generated key: 32 characters or more of letters and digits in one piece, with
// both in it. Digests look so too; they aren't needed to start anything.
func random(value string) bool {
	letters, digits, run := 0, 0, 0
	for _, ch := range value {
		switch {
		case ch >= '0' && ch <= '9':
			digits++
		case ch >= 'a' && ch <= 'z', ch >= 'A' && ch <= 'Z', ch == '_', ch == '-', ch == '+':
			letters++
		default:
			letters, digits, run = 0, 0, 0
			continue
		}
		if run++; run >= 32 && letters > 0 && digits > 3 {
			return true
		}
	}
	return false
}

// maskURL keeps a URL's scheme, host and path where nothing else is in it; anything suspicious goes whole.
func maskURL(value string) string {
	u, err := url.Parse(value)
	isURL := err == nil && u.Scheme != "" && u.Host != ""
	if isURL && (u.User != nil || u.RawQuery != "" || u.Fragment != "") {
		shown := u.Scheme + "://" + u.Host + u.EscapedPath()
		if suspicious(shown) {
			return masked
		}
		return shown + " " + masked
	}
	if suspicious(value) {
		return masked
	}
	return value
}
