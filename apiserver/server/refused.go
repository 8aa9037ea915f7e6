package server

import (
	"strconv"

	"github.com/spf13/pflag"
)

// refusedFlags are kube-apiserver's flags that have no meaning here, with what to use instead, and
// those that can only have their default, which describes what this server does. They are refused
// and not ignored, because whoever sets one expects an effect.
func refusedFlags() map[string]refused {
	const (
		endpoint = "objects are kept in SQLite or PostgreSQL: use --endpoint"
		tls      = "there is no etcd to connect to: put TLS settings for PostgreSQL into --endpoint (sslmode, sslrootcert, sslcert, sslkey)"
	)
	return map[string]refused{
		"etcd-servers":                   {kindRefused, "", endpoint},
		"etcd-servers-overrides":         {kindRefused, "", "all resources are kept in one database: use --endpoint"},
		"etcd-prefix":                    {kindRefused, "", "a database holds one cluster: give each cluster a database of its own with --endpoint"},
		"etcd-cafile":                    {kindRefused, "", tls},
		"etcd-certfile":                  {kindRefused, "", tls},
		"etcd-keyfile":                   {kindRefused, "", tls},
		"etcd-compaction-interval":       {kindRefused, "", "history is kept by age: use --retention"},
		"etcd-count-metric-poll-period":  {kindRefused, "", "objects are counted as they change: leave the flag out"},
		"etcd-db-metric-poll-interval":   {kindRefused, "", "the database's size is on /metrics whenever it is asked for: leave the flag out"},
		"etcd-healthcheck-timeout":       {kindRefused, "", "the store's check has a fixed timeout of two seconds: leave the flag out"},
		"etcd-readycheck-timeout":        {kindRefused, "", "the store's check has a fixed timeout of two seconds: leave the flag out"},
		"storage-backend":                {kindRefused, "", endpoint},
		"storage-media-type":             {kindRefused, "", "objects are stored as JSON: leave the flag out"},
		"storage-initialization-timeout": {kindRefused, "", "a start without the database fails at once, to be tried again by what runs this program: leave the flag out"},
		"lease-reuse-duration-seconds":   {kindRefused, "", "each object has an expiry of its own: leave the flag out"},
		"peer-ca-file":                   {kindRefused, "", "every replica serves all there is in the database, so none sends requests on to another: leave the flag out"},
		"apiserver-count":                {"int", "1", "replicas find one another in the database: leave the flag out"},
		"enable-logs-handler":            {"bool", "false", "the log goes to standard error, there are no files to serve: leave the flag out"},
	}
}

// refused is the value of a flag that can be set to one value only, or if it is of kindRefused, to none.
type refused struct{ kind, value, reason string }

const kindRefused = "refused"

func (r refused) String() string { return r.value }
func (r refused) Type() string   { return r.kind }

func (r refused) Set(value string) error {
	if given, err := strconv.ParseBool(value); err == nil && r.kind == "bool" {
		value = strconv.FormatBool(given)
	}
	if value != r.value || r.kind == kindRefused {
		return &RefusedFlagError{r.reason}
	}
	return nil
}

// RefusedFlagError says why a flag of kube-apiserver can't be used here.
type RefusedFlagError struct{ reason string }

// Error implements error.
func (e *RefusedFlagError) Error() string { return e.reason }

func addRefusedFlags(fs *pflag.FlagSet) {
	for name, value := range refusedFlags() {
		usage, without := "Can only be "+value.value+": "+value.reason, ""
		switch value.kind {
		case kindRefused:
			usage, without = value.reason, "set" // it is refused even if no value follows
		case "bool":
			without = "true"
		}
		fs.Var(value, name, usage)
		flag := fs.Lookup(name)
		flag.Hidden, flag.NoOptDefVal = true, without
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
