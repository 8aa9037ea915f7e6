package options

import "github.com/spf13/pflag"

// DebugOptions say how the running process can be profiled.
type DebugOptions struct {
	Profiling, Contention bool
	SocketPath            string
}

// AddFlags adds the flags.
func (o *DebugOptions) AddFlags(fs *pflag.FlagSet) {
	fs.BoolVar(&o.Profiling, "profiling", o.Profiling,
		"Serve profiles at /debug/pprof/ and log levels at /debug/flags/v to those who are authorized.")
	fs.BoolVar(&o.Contention, "contention-profiling", o.Contention,
		"Enable block profiling, /debug/pprof/block, if there is a way to read it.")
	fs.StringVar(&o.SocketPath, "debug-socket-path", o.SocketPath,
		"Unix socket to serve profiles and log levels on, to whoever may open it, without authentication. What is at this path is replaced.")
}
