package options

import "github.com/spf13/pflag"

// DebugOptions say who may look into the running process.
type DebugOptions struct {
	// Profiling serves profiles over the API's port.
	Profiling bool
	// Contention has the profile of blocking filled.
	Contention bool
	// SocketPath is a Unix socket that serves profiles too; empty is none.
	SocketPath string
}

// AddFlags adds the flags.
func (o *DebugOptions) AddFlags(fs *pflag.FlagSet) {
	fs.BoolVar(&o.Profiling, "profiling", o.Profiling,
		"Serve profiles at /debug/pprof/ and log levels at /debug/flags/v to those who are authorized.")
	fs.BoolVar(&o.Contention, "contention-profiling", o.Contention,
		"Fill the profile of blocking, /debug/pprof/block, if there is a way to read it.")
	fs.StringVar(&o.SocketPath, "debug-socket-path", o.SocketPath,
		"Unix socket to serve profiles and log levels on, to whoever may open it, without authentication. What is at this path is replaced.")
}
