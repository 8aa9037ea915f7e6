package admission

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/admission"
	apiserverv1 "k8s.io/apiserver/pkg/apis/apiserver/v1"
	kubeoptions "k8s.io/kubernetes/pkg/kubeapiserver/options"
	"k8s.io/kubernetes/plugin/pkg/admission/noderestriction"
	"sigs.k8s.io/yaml"
)

// Options are kube-apiserver's flags of admission.
type Options struct {
	kubeoptions.AdmissionOptions
	// NodeAuthorizer says that authorization uses the Node authorizer. The Node
	// authorizer allows a kubelet to create Pods and to change Nodes, and relies on
	// the NodeRestriction plugin to limit the kubelet to its own Node. With
	// NodeAuthorizer that plugin is on unless DisablePlugins names it.
	NodeAuthorizer bool
}

// NewOptions returns options with which the plugins that are on by default are on.
func NewOptions() *Options { return &Options{AdmissionOptions: *kubeoptions.NewAdmissionOptions()} }

// AddFlags adds the flags to fs.
func (o *Options) AddFlags(fs *pflag.FlagSet) {
	o.AdmissionOptions.AddFlags(fs)
	fs.Lookup("enable-admission-plugins").Usage += " NodeRestriction is on too where the Node authorizer is configured."
}

// CheckConfiguration reads ConfigFile and the files that it names for plugins that are on. Upstream ends the
// process where one of these is missing.
func (o *Options) CheckConfiguration() error {
	if _, err := o.readConfiguration(); err != nil {
		return err
	}
	var config apiserverv1.AdmissionConfiguration
	data, err := os.ReadFile(o.GenericAdmission.ConfigFile)
	if err == nil {
		err = yaml.Unmarshal(data, &config)
	}
	for _, plugin := range config.Plugins {
		path := plugin.Path
		if path == "" || plugin.Configuration != nil || !slices.Contains(o.EnabledPluginNames(), plugin.Name) {
			continue // upstream reads no file
		}
		if !filepath.IsAbs(path) {
			path = filepath.Join(filepath.Dir(o.GenericAdmission.ConfigFile), path)
		}
		if _, err := os.ReadFile(path); err != nil {
			return fmt.Errorf("plugin %s: %w", plugin.Name, err)
		}
	}
	return err
}

func (o *Options) readConfiguration() (admission.ConfigProvider, error) {
	return admission.ReadAdmissionConfiguration(o.EnabledPluginNames(), o.GenericAdmission.ConfigFile, configurationScheme())
}

// EnabledPluginNames returns the plugins that are on, in the order of the chain. The
// caller calls Validate first, which refuses a plugin that is both enabled and disabled.
func (o *Options) EnabledPluginNames() []string {
	generic := o.GenericAdmission
	chosen := sets.New(o.PluginNames...)
	if chosen.Len() == 0 {
		chosen = sets.New(generic.RecommendedPluginOrder...).Difference(generic.DefaultOffPlugins).Insert(generic.EnablePlugins...)
	}
	if o.NodeAuthorizer {
		chosen.Insert(noderestriction.PluginName)
	}
	chosen.Delete(generic.DisablePlugins...)
	return slices.DeleteFunc(slices.Clone(generic.RecommendedPluginOrder), func(name string) bool { return !chosen.Has(name) })
}
