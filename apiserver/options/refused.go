package options

import (
	"strconv"

	"github.com/spf13/pflag"
)

// refusedFlags are kube-apiserver's flags that have no meaning here, with what to use
// instead. They are refused and not ignored, because whoever sets one expects an
// effect.
func refusedFlags() map[string]string {
	const (
		endpoint = "objects are kept in SQLite or PostgreSQL: use --endpoint"
		tls      = "there is no etcd to connect to: put TLS settings for PostgreSQL into --endpoint (sslmode, sslrootcert, sslcert, sslkey)"
	)
	return map[string]string{
		"etcd-servers":                   endpoint,
		"etcd-servers-overrides":         "all resources are kept in one database: use --endpoint",
		"etcd-prefix":                    "a database holds one cluster: give each cluster a database of its own with --endpoint",
		"etcd-cafile":                    tls,
		"etcd-certfile":                  tls,
		"etcd-keyfile":                   tls,
		"etcd-compaction-interval":       "history is kept by age: use --retention",
		"etcd-count-metric-poll-period":  "objects are counted as they change: leave the flag out",
		"etcd-db-metric-poll-interval":   "the database's size is on /metrics whenever it is asked for: leave the flag out",
		"etcd-healthcheck-timeout":       "the store's check has a fixed timeout of two seconds: leave the flag out",
		"etcd-readycheck-timeout":        "the store's check has a fixed timeout of two seconds: leave the flag out",
		"storage-backend":                endpoint,
		"storage-media-type":             "objects are stored as JSON: leave the flag out",
		"storage-initialization-timeout": "a start without the database fails at once, to be tried again by what runs this program: leave the flag out",
		"lease-reuse-duration-seconds":   "each object has an expiry of its own: leave the flag out",
		"peer-ca-file":                   "every replica serves all there is in the database, so none sends requests on to another: leave the flag out",
	}
}

// refused is the value of a flag that can't be set.
type refused struct{ reason string }

func (refused) String() string       { return "" }
func (refused) Type() string         { return "refused" }
func (r refused) Set(_ string) error { return &RefusedFlagError{r.reason} }

// RefusedFlagError says why a flag of kube-apiserver can't be used here.
type RefusedFlagError struct{ reason string }

// Error implements error.
func (e *RefusedFlagError) Error() string { return e.reason }

func addRefusedFlags(fs *pflag.FlagSet) {
	for name, reason := range refusedFlags() {
		fs.Var(refused{reason}, name, reason)
		flag := fs.Lookup(name)
		flag.Hidden = true
		// With NoOptDefVal the flag is refused even if no value follows.
		flag.NoOptDefVal = "set"
	}
}

// addIgnoredFlags adds kube-apiserver's flags of the watch cache. They are accepted, because no
// value of theirs changes an answer, and change nothing.
func addIgnoredFlags(fs *pflag.FlagSet) {
	const usage = "Changes nothing: there is no separate watch cache to tune."
	fs.Bool("watch-cache", true, usage)
	fs.StringSlice("watch-cache-sizes", nil, usage)
	fs.Int("default-watch-cache-size", 100, usage)
	for _, name := range ignoredFlags() {
		fs.Lookup(name).Hidden = true
	}
}

func ignoredFlags() []string {
	return []string{"default-watch-cache-size", "watch-cache", "watch-cache-sizes"}
}

// Ignored are the names of the flags that were given and change nothing, sorted.
func (o *Options) Ignored() []string {
	var names []string
	for _, name := range ignoredFlags() {
		if o.flags.FlagSet("misc").Changed(name) {
			names = append(names, "--"+name)
		}
	}
	return names
}

// fixedFlags are kube-apiserver's flags that can only have their default here, which
// describes what this server does. Any other value is refused.
func fixedFlags() map[string]fixed {
	return map[string]fixed{
		"apiserver-count":     {"int", "1", "replicas find one another in the database: leave the flag out"},
		"enable-logs-handler": {"bool", "false", "the log goes to standard error, there are no files to serve: leave the flag out"},
	}
}

// fixed is the value of a flag that can be set to one value only.
type fixed struct{ kind, value, reason string }

func (f fixed) String() string { return f.value }
func (f fixed) Type() string   { return f.kind }

func (f fixed) Set(value string) error {
	if given, err := strconv.ParseBool(value); err == nil && f.kind == "bool" {
		value = strconv.FormatBool(given)
	}
	if value != f.value {
		return &RefusedFlagError{f.reason}
	}
	return nil
}

func addFixedFlags(fs *pflag.FlagSet) {
	for name, value := range fixedFlags() {
		fs.Var(value, name, "Can only be "+value.value+": "+value.reason)
		flag := fs.Lookup(name)
		flag.Hidden = true
		if value.kind == "bool" {
			flag.NoOptDefVal = "true"
		}
	}
}
