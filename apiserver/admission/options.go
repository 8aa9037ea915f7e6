package admission

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"k8s.io/kubernetes/plugin/pkg/admission/defaulttolerationseconds"
)

// Options are the flags of admission, with kube-apiserver's names and defaults.
type Options struct {
	// Enable and Disable change the default choice of plugins.
	Enable  []string
	Disable []string
	// Only, from the deprecated --admission-control, replaces the choice.
	Only []string
	// ConfigFile holds an AdmissionConfiguration with the plugins' own settings.
	ConfigFile string
}

// NewOptions returns the default choice.
func NewOptions() *Options { return &Options{} }

// AddFlags adds the flags to fs.
func (o *Options) AddFlags(fs *pflag.FlagSet) {
	all := plugins()
	every := strings.Join(names(all, false), ", ")
	usual := strings.Join(names(all, true), ", ")
	fs.StringSliceVar(&o.Enable, "enable-admission-plugins", o.Enable,
		"Admission plugins to turn on besides those that are on by default ("+usual+"). Known: "+every+". Their order here doesn't matter.")
	fs.StringSliceVar(&o.Disable, "disable-admission-plugins", o.Disable,
		"Admission plugins to turn off although they are on by default ("+usual+"). Known: "+every+". Their order here doesn't matter.")
	fs.StringSliceVar(&o.Only, "admission-control", o.Only,
		"Exactly the admission plugins to turn on.")
	// The flag was defined a line above, so neither can fail.
	_ = fs.MarkDeprecated("admission-control", "use --enable-admission-plugins and --disable-admission-plugins")
	fs.Lookup("admission-control").Hidden = false
	fs.StringVar(&o.ConfigFile, "admission-control-config-file", o.ConfigFile,
		"File with an AdmissionConfiguration: the settings of single plugins.")
	defaulttolerationseconds.RegisterFlags(fs)
}

// Validate returns one error for each wrong flag.
func (o *Options) Validate() []error {
	known := names(plugins(), false)
	var errs []error
	for _, list := range []struct {
		flag  string
		names []string
	}{
		{"enable-admission-plugins", o.Enable},
		{"disable-admission-plugins", o.Disable},
		{"admission-control", o.Only},
	} {
		for _, name := range list.names {
			if !slices.Contains(known, name) {
				errs = append(errs, fmt.Errorf("--%s: there is no admission plugin %q", list.flag, name))
			}
		}
	}
	for _, name := range o.Enable {
		if slices.Contains(o.Disable, name) {
			errs = append(errs, fmt.Errorf("admission plugin %s is in both --enable-admission-plugins and --disable-admission-plugins", name))
		}
	}
	if len(o.Only) > 0 && len(o.Enable)+len(o.Disable) > 0 {
		errs = append(errs, errors.New("--admission-control excludes --enable-admission-plugins and --disable-admission-plugins"))
	}
	return errs
}
