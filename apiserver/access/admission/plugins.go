package admission

import (
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/plugin/namespace/lifecycle"
	mutatingpolicy "k8s.io/apiserver/pkg/admission/plugin/policy/mutating"
	validatingpolicy "k8s.io/apiserver/pkg/admission/plugin/policy/validating"
	"k8s.io/apiserver/pkg/admission/plugin/resourcequota"
	mutatingwebhook "k8s.io/apiserver/pkg/admission/plugin/webhook/mutating"
	validatingwebhook "k8s.io/apiserver/pkg/admission/plugin/webhook/validating"
	"k8s.io/kubernetes/plugin/pkg/admission/admit"
	"k8s.io/kubernetes/plugin/pkg/admission/alwayspullimages"
	"k8s.io/kubernetes/plugin/pkg/admission/antiaffinity"
	certapproval "k8s.io/kubernetes/plugin/pkg/admission/certificates/approval"
	"k8s.io/kubernetes/plugin/pkg/admission/certificates/ctbattest"
	certsigning "k8s.io/kubernetes/plugin/pkg/admission/certificates/signing"
	certsubject "k8s.io/kubernetes/plugin/pkg/admission/certificates/subjectrestriction"
	"k8s.io/kubernetes/plugin/pkg/admission/defaulttolerationseconds"
	"k8s.io/kubernetes/plugin/pkg/admission/deny"
	"k8s.io/kubernetes/plugin/pkg/admission/eventratelimit"
	"k8s.io/kubernetes/plugin/pkg/admission/extendedresourcetoleration"
	"k8s.io/kubernetes/plugin/pkg/admission/gc"
	"k8s.io/kubernetes/plugin/pkg/admission/imagepolicy"
	"k8s.io/kubernetes/plugin/pkg/admission/limitranger"
	"k8s.io/kubernetes/plugin/pkg/admission/namespace/autoprovision"
	"k8s.io/kubernetes/plugin/pkg/admission/namespace/exists"
	"k8s.io/kubernetes/plugin/pkg/admission/network/defaultingressclass"
	"k8s.io/kubernetes/plugin/pkg/admission/network/denyserviceexternalips"
	"k8s.io/kubernetes/plugin/pkg/admission/nodedeclaredfeatures"
	"k8s.io/kubernetes/plugin/pkg/admission/noderestriction"
	"k8s.io/kubernetes/plugin/pkg/admission/nodetaint"
	"k8s.io/kubernetes/plugin/pkg/admission/podnodeselector"
	"k8s.io/kubernetes/plugin/pkg/admission/podresize"
	"k8s.io/kubernetes/plugin/pkg/admission/podtolerationrestriction"
	"k8s.io/kubernetes/plugin/pkg/admission/podtopologylabels"
	"k8s.io/kubernetes/plugin/pkg/admission/priority"
	"k8s.io/kubernetes/plugin/pkg/admission/runtimeclass"
	"k8s.io/kubernetes/plugin/pkg/admission/scheduling/podgroupprotection"
	"k8s.io/kubernetes/plugin/pkg/admission/security/podsecurity"
	"k8s.io/kubernetes/plugin/pkg/admission/serviceaccount"
	"k8s.io/kubernetes/plugin/pkg/admission/storage/persistentvolume/resize"
	"k8s.io/kubernetes/plugin/pkg/admission/storage/storageclass/setdefault"
	"k8s.io/kubernetes/plugin/pkg/admission/storage/storageobjectinuseprotection"
)

// plugin is one row of the table of plugins. Several plugins that are on by default
// do nothing unless a feature gate is on too.
type plugin struct {
	name      string
	register  func(*admission.Plugins)
	defaultOn bool
}

const on, off = true, false

// plugins returns every plugin in the order of the chain.
func plugins() []plugin {
	return []plugin{
		{admit.PluginName, admit.Register, off},
		{autoprovision.PluginName, autoprovision.Register, off},
		{lifecycle.PluginName, lifecycle.Register, on},
		{exists.PluginName, exists.Register, off},
		{antiaffinity.PluginName, antiaffinity.Register, off},
		{limitranger.PluginName, limitranger.Register, on},
		{serviceaccount.PluginName, serviceaccount.Register, on},
		{noderestriction.PluginName, noderestriction.Register, off},
		{nodetaint.PluginName, nodetaint.Register, on},
		{alwayspullimages.PluginName, alwayspullimages.Register, off},
		{imagepolicy.PluginName, imagepolicy.Register, off},
		{podsecurity.PluginName, podsecurity.Register, on},
		{podnodeselector.PluginName, podnodeselector.Register, off},
		{priority.PluginName, priority.Register, on},
		{defaulttolerationseconds.PluginName, defaulttolerationseconds.Register, on},
		{podtolerationrestriction.PluginName, podtolerationrestriction.Register, off},
		{eventratelimit.PluginName, eventratelimit.Register, off},
		{extendedresourcetoleration.PluginName, extendedresourcetoleration.Register, off},
		{setdefault.PluginName, setdefault.Register, on},
		{storageobjectinuseprotection.PluginName, storageobjectinuseprotection.Register, on},
		{podgroupprotection.PluginName, podgroupprotection.Register, on},
		{gc.PluginName, gc.Register, off},
		{resize.PluginName, resize.Register, on},
		{runtimeclass.PluginName, runtimeclass.Register, on},
		{certapproval.PluginName, certapproval.Register, on},
		{certsigning.PluginName, certsigning.Register, on},
		{ctbattest.PluginName, ctbattest.Register, on},
		{certsubject.PluginName, certsubject.Register, on},
		{defaultingressclass.PluginName, defaultingressclass.Register, on},
		{denyserviceexternalips.PluginName, denyserviceexternalips.Register, off},
		{podtopologylabels.PluginName, podtopologylabels.Register, on},
		{nodedeclaredfeatures.PluginName, nodedeclaredfeatures.Register, on},
		{podresize.PluginName, podresize.Register, on},

		// Policies, webhooks and quota come last: they see the object as all
		// other plugins have changed it.
		{mutatingpolicy.PluginName, mutatingpolicy.Register, on},
		{mutatingwebhook.PluginName, mutatingwebhook.Register, on},
		{validatingpolicy.PluginName, validatingpolicy.Register, on},
		{validatingwebhook.PluginName, validatingwebhook.Register, on},
		{resourcequota.PluginName, resourcequota.Register, on},
		{deny.PluginName, deny.Register, off},
	}
}

// pluginNames returns the names of the plugins in order; with onlyDefault, of those
// that are on by default.
func pluginNames(all []plugin, onlyDefault bool) []string {
	var list []string
	for _, p := range all {
		if p.defaultOn || !onlyDefault {
			list = append(list, p.name)
		}
	}
	return list
}
