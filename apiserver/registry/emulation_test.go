package registry_test

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/version"
	genericapiserver "k8s.io/apiserver/pkg/server"
	cliflag "k8s.io/component-base/cli/flag"
)

type emulation = genericapiserver.ResourceExpirationEvaluatorOptions

// TestGroups_EmulatedReleaseHidesLaterAPIs: an API that a later release introduced is
// served only if a flag turns it on. (mutatingadmissionpolicies became v1 in 1.36.)
func TestGroups_EmulatedReleaseHidesLaterAPIs(t *testing.T) {
	t.Parallel()
	const policies = "mutatingadmissionpolicies"
	beta := cliflag.ConfigurationMap{"admissionregistration.k8s.io/v1beta1": "true"}
	tests := map[string]struct {
		config    cliflag.ConfigurationMap
		emulation emulation
		want      string // the served versions of policies, or the error
	}{
		"this release":                   {nil, emulation{CurrentVersion: version.MajorMinor(1, 36)}, "v1"},
		"the last":                       {nil, emulation{CurrentVersion: version.MajorMinor(1, 35)}, ""},
		"the last, with the beta":        {beta, emulation{CurrentVersion: version.MajorMinor(1, 35)}, "v1beta1"},
		"the last, forward compatible":   {beta, emulation{CurrentVersion: version.MajorMinor(1, 35), EmulationForwardCompatible: true}, "v1 v1beta1"},
		"nothing to be compatible with":  {nil, emulation{CurrentVersion: version.MajorMinor(1, 35), EmulationForwardCompatible: true}, ""},
		"named, and not to be had":       {cliflag.ConfigurationMap{"admissionregistration.k8s.io/v1/" + policies: "true"}, emulation{CurrentVersion: version.MajorMinor(1, 35)}, "introduced at 1.36 after the current version 1.35"},
		"named, and to be served anyhow": {cliflag.ConfigurationMap{"admissionregistration.k8s.io/v1/" + policies: "true"}, emulation{CurrentVersion: version.MajorMinor(1, 35), RuntimeConfigEmulationForwardCompatible: true}, "v1"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			b, err := emulate(t, test.config, test.emulation)
			if err != nil {
				if test.want == "" || !strings.Contains(err.Error(), test.want) || strings.Contains(err.Error(), "\n") {
					t.Errorf("error is %v, want %q", err, test.want)
				}
				return
			}
			defer b.Close()
			var found []string
			for _, g := range b.Groups() {
				for _, v := range g.Versions {
					if g.Storage[v][policies] != nil {
						found = append(found, v)
					}
				}
			}
			if got := strings.Join(found, " "); got != test.want {
				t.Errorf("served in %q, want %q", got, test.want)
			}
		})
	}
}

// TestGroups_ARemovedAPIIsThereForAnEarlierRelease: an API that this release has removed can be
// turned on only while an earlier release is emulated. (servicecidrs lost v1beta1 in 1.37.)
func TestGroups_ARemovedAPIIsThereForAnEarlierRelease(t *testing.T) {
	t.Parallel()
	beta := cliflag.ConfigurationMap{"networking.k8s.io/v1beta1": "true"}
	for _, test := range []struct {
		minor uint
		want  bool
	}{{36, true}, {37, false}} {
		b, err := emulate(t, beta, emulation{CurrentVersion: version.MajorMinor(1, test.minor)})
		if err != nil {
			t.Fatal(err)
		}
		defer b.Close()
		for _, g := range b.Groups() {
			if got := len(g.Storage["v1beta1"]) > 0; g.Name == "networking.k8s.io" && got != test.want {
				t.Errorf("1.%d serves networking.k8s.io/v1beta1: %t, want %t", test.minor, got, test.want)
			}
		}
	}
}

// TestGroups_ARemovedAPIIsServedForOneReleaseMore: kube-apiserver's variable serves what this
// release has removed.
func TestGroups_ARemovedAPIIsServedForOneReleaseMore(t *testing.T) {
	t.Setenv("KUBE_APISERVER_SERVE_REMOVED_APIS_FOR_ONE_RELEASE", "true")
	b, err := emulate(t, cliflag.ConfigurationMap{"networking.k8s.io/v1beta1": "true"}, emulation{CurrentVersion: version.MajorMinor(1, 37)})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	for _, g := range b.Groups() {
		if g.Name == "networking.k8s.io" && len(g.Storage["v1beta1"]) == 0 {
			t.Error("networking.k8s.io/v1beta1 is not served")
		}
	}
}
