package admission

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/kubernetes/plugin/pkg/admission/defaulttolerationseconds"
	"k8s.io/kubernetes/plugin/pkg/admission/noderestriction"
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
	// NodeAuthorizer says that authorization uses the Node authorizer. It lets a
	// kubelet create Pods and change nodes, and relies on NodeRestriction to keep
	// the kubelet to its own: that plugin is then on unless Disable names it.
	NodeAuthorizer bool
}

// NewOptions returns the default choice.
func NewOptions() *Options { return &Options{} }

// AddFlags adds the flags to fs.
func (o *Options) AddFlags(fs *pflag.FlagSet) {
	all := plugins()
	every := strings.Join(names(all, false), ", ")
	usual := strings.Join(names(all, true), ", ")
	fs.StringSliceVar(&o.Enable, "enable-admission-plugins", o.Enable,
		"Admission plugins to turn on besides those that are on by default ("+usual+"; NodeRestriction too where the Node authorizer is configured). Known: "+every+". Their order here doesn't matter.")
	fs.StringSliceVar(&o.Disable, "disable-admission-plugins", o.Disable,
		"Admission plugins to turn off although they are on by default ("+usual+"). Known: "+every+". Their order here doesn't matter.")
	fs.StringSliceVar(&o.Only, "admission-control", o.Only,
		"Exactly the admission plugins to turn on, and NodeRestriction where the Node authorizer is configured.")
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

// Enabled lists, in the order of the chain, the plugins that o chooses. It comes
// after Validate, which refuses a plugin that is both enabled and disabled.
func (o *Options) Enabled() []string {
	enable, disable, only := sets.New(o.Enable...), sets.New(o.Disable...), sets.New(o.Only...)
	var list []string
	for _, p := range plugins() {
		chosen := p.defaultOn || enable.Has(p.name)
		if only.Len() > 0 {
			chosen = only.Has(p.name)
		}
		if p.name == noderestriction.PluginName {
			chosen = chosen || o.NodeAuthorizer
		}
		if chosen && !disable.Has(p.name) {
			list = append(list, p.name)
		}
	}
	return list
}
