package admission

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/kubernetes/plugin/pkg/admission/defaulttolerationseconds"
	"k8s.io/kubernetes/plugin/pkg/admission/noderestriction"
)

// Options are the flags of admission, with kube-apiserver's names and defaults.
type Options struct {
	// EnablePlugins and DisablePlugins name plugins to add to, and to remove
	// from, those that are on by default.
	EnablePlugins  []string
	DisablePlugins []string
	// PluginNames, from the deprecated --admission-control, names exactly the
	// plugins that are on.
	PluginNames []string
	// ConfigFile holds an AdmissionConfiguration with the plugins' own settings.
	ConfigFile string
	// NodeAuthorizer says that authorization uses the Node authorizer. The Node
	// authorizer allows a kubelet to create Pods and to change Nodes, and relies on
	// the NodeRestriction plugin to limit the kubelet to its own Node. With
	// NodeAuthorizer that plugin is on unless DisablePlugins names it.
	NodeAuthorizer bool
}

// NewOptions returns options with which the plugins that are on by default are on.
func NewOptions() *Options { return &Options{} }

// AddFlags adds the flags to fs.
func (o *Options) AddFlags(fs *pflag.FlagSet) {
	every := strings.Join(allPlugins(), ", ")
	usual := strings.Join(defaultPlugins(), ", ")
	fs.StringSliceVar(&o.EnablePlugins, "enable-admission-plugins", o.EnablePlugins,
		"Admission plugins to turn on besides those that are on by default ("+usual+"; NodeRestriction too where the Node authorizer is configured). Known: "+every+". Their order here doesn't matter.")
	fs.StringSliceVar(&o.DisablePlugins, "disable-admission-plugins", o.DisablePlugins,
		"Admission plugins to turn off although they are on by default ("+usual+"). Known: "+every+". Their order here doesn't matter.")
	fs.StringSliceVar(&o.PluginNames, "admission-control", o.PluginNames,
		"Exactly the admission plugins to turn on, and NodeRestriction where the Node authorizer is configured.")
	// MarkDeprecated fails only for a flag that is not defined.
	_ = fs.MarkDeprecated("admission-control", "use --enable-admission-plugins and --disable-admission-plugins")
	fs.Lookup("admission-control").Hidden = false
	fs.StringVar(&o.ConfigFile, "admission-control-config-file", o.ConfigFile,
		"File with an AdmissionConfiguration: the settings of single plugins.")
	defaulttolerationseconds.RegisterFlags(fs)
}

// Validate returns one error for each wrong flag.
func (o *Options) Validate() []error {
	var errs []error
	for _, list := range []struct {
		flag  string
		names []string
	}{
		{"enable-admission-plugins", o.EnablePlugins},
		{"disable-admission-plugins", o.DisablePlugins},
		{"admission-control", o.PluginNames},
	} {
		for _, name := range list.names {
			if !slices.Contains(allPlugins(), name) {
				errs = append(errs, fmt.Errorf("--%s: there is no admission plugin %q", list.flag, name))
			}
		}
	}
	for _, name := range o.EnablePlugins {
		if slices.Contains(o.DisablePlugins, name) {
			errs = append(errs, fmt.Errorf("admission plugin %s is in both --enable-admission-plugins and --disable-admission-plugins", name))
		}
	}
	if len(o.PluginNames) > 0 && len(o.EnablePlugins)+len(o.DisablePlugins) > 0 {
		errs = append(errs, errors.New("--admission-control excludes --enable-admission-plugins and --disable-admission-plugins"))
	}
	return errs
}

// CheckConfiguration reads ConfigFile.
func (o *Options) CheckConfiguration() error {
	_, err := o.readConfiguration()
	return err
}

func (o *Options) readConfiguration() (admission.ConfigProvider, error) {
	return admission.ReadAdmissionConfiguration(o.EnabledPluginNames(), o.ConfigFile, configurationScheme())
}

// EnabledPluginNames returns the plugins that are on, in the order of the chain. The
// caller calls Validate first, which refuses a plugin that is both enabled and disabled.
func (o *Options) EnabledPluginNames() []string {
	chosen := sets.New(o.PluginNames...)
	if chosen.Len() == 0 {
		chosen.Insert(defaultPlugins()...).Insert(o.EnablePlugins...)
	}
	if o.NodeAuthorizer {
		chosen.Insert(noderestriction.PluginName)
	}
	chosen.Delete(o.DisablePlugins...)
	return slices.DeleteFunc(slices.Clone(allPlugins()), func(name string) bool { return !chosen.Has(name) })
}
