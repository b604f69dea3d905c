package main

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v4"

	"github.com/agora-relay/agora/cmd/agora/internal/settings"
)

// The types below have the keys of Compose and Kubernetes that the examples use. A key that is in no type is an error.

type composeFile struct {
	Services map[string]composeService
	Volumes  map[string]struct{}
}

type composeService struct {
	Image, Restart, User  string
	StopGracePeriod       string   `yaml:"stop_grace_period"`
	ReadOnly              bool     `yaml:"read_only"`
	CapDrop               []string `yaml:"cap_drop"`
	SecurityOpt           []string `yaml:"security_opt"`
	Environment           map[string]string
	Ports, Volumes, Tmpfs []string
	Ulimits               map[string]int
}

type labels map[string]string

type object struct {
	APIVersion string `yaml:"apiVersion"`
	Kind       string
	Metadata   metadata
	Spec       objectSpec
}

type metadata struct {
	Name   string
	Labels labels
}

// selector selects the pods that have all labels: of a Service the labels themselves, of other objects in matchLabels.
type selector struct {
	App         string
	MatchLabels labels `yaml:"matchLabels"`
}

type objectSpec struct {
	Selector selector
	Ports    []struct {
		Name       string
		Port       int
		TargetPort string `yaml:"targetPort"`
	}
	ServiceName  string `yaml:"serviceName"`
	Replicas     int
	MinAvailable int `yaml:"minAvailable"`
	Strategy     struct {
		Type          string
		RollingUpdate struct {
			MaxSurge       int `yaml:"maxSurge"`
			MaxUnavailable int `yaml:"maxUnavailable"`
		} `yaml:"rollingUpdate"`
	}
	Template struct {
		Metadata metadata
		Spec     podSpec
	}
	VolumeClaimTemplates []struct {
		Metadata metadata
		Spec     struct {
			AccessModes []string `yaml:"accessModes"`
			Resources   resources
		}
	} `yaml:"volumeClaimTemplates"`
}

type resources struct{ Requests, Limits map[string]string }

type podSpec struct {
	TerminationGracePeriodSeconds int   `yaml:"terminationGracePeriodSeconds"`
	AutomountServiceAccountToken  *bool `yaml:"automountServiceAccountToken"`
	SecurityContext               struct {
		RunAsNonRoot   bool                  `yaml:"runAsNonRoot"`
		RunAsUser      int                   `yaml:"runAsUser"`
		RunAsGroup     int                   `yaml:"runAsGroup"`
		FsGroup        int                   `yaml:"fsGroup"`
		SeccompProfile struct{ Type string } `yaml:"seccompProfile"`
	} `yaml:"securityContext"`
	TopologySpreadConstraints []struct {
		MaxSkew           int      `yaml:"maxSkew"`
		TopologyKey       string   `yaml:"topologyKey"`
		WhenUnsatisfiable string   `yaml:"whenUnsatisfiable"`
		LabelSelector     selector `yaml:"labelSelector"`
	} `yaml:"topologySpreadConstraints"`
	InitContainers []container `yaml:"initContainers"`
	Containers     []container
	Volumes        []struct {
		Name     string
		EmptyDir *struct{ Medium string } `yaml:"emptyDir"`
		Secret   *struct {
			SecretName  string `yaml:"secretName"`
			DefaultMode int    `yaml:"defaultMode"`
		}
	}
}

type container struct {
	Name, Image string
	Command     []string
	Env         []struct{ Name, Value string }
	Ports       []struct {
		Name          string
		ContainerPort int `yaml:"containerPort"`
	}
	StartupProbe    probe `yaml:"startupProbe"`
	LivenessProbe   probe `yaml:"livenessProbe"`
	ReadinessProbe  probe `yaml:"readinessProbe"`
	Resources       resources
	SecurityContext struct {
		AllowPrivilegeEscalation *bool `yaml:"allowPrivilegeEscalation"`
		ReadOnlyRootFilesystem   bool  `yaml:"readOnlyRootFilesystem"`
		Capabilities             struct{ Drop []string }
	} `yaml:"securityContext"`
	VolumeMounts []struct {
		Name      string
		MountPath string `yaml:"mountPath"`
		ReadOnly  bool   `yaml:"readOnly"`
	} `yaml:"volumeMounts"`
}

type probe struct {
	HTTPGet          struct{ Path, Port string } `yaml:"httpGet"`
	PeriodSeconds    int                         `yaml:"periodSeconds"`
	FailureThreshold int                         `yaml:"failureThreshold"`
}

// example reads the documents of an example.
func example[T any](t *testing.T, name string) (all []T) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", "examples", name))
	if err != nil {
		t.Fatal(err)
	}
	in := yaml.NewDecoder(bytes.NewReader(text))
	in.KnownFields(true)
	for {
		var one T
		switch err := in.Decode(&one); {
		case errors.Is(err, io.EOF):
			return all
		case err != nil:
			t.Fatalf("%s: %v", name, err)
		}
		all = append(all, one)
	}
}

// wantSetting checks that a variable is a setting of agora serve, as it is or as the name of a file.
func wantSetting(t *testing.T, name string) {
	t.Helper()
	parser, err := newParser(new(commandLine))
	if err != nil {
		t.Fatal(err)
	}
	setting, ours := strings.CutPrefix(strings.TrimSuffix(name, settings.SecretSuffix), "AGORA_")
	if flag := strings.ToLower(strings.ReplaceAll(setting, "_", "-")); !ours || !ownFlag(childOf(parser.Model.Node, "serve"), flag) {
		t.Errorf("agora serve has no setting %s", name)
	}
}

// TestComposeExample checks the keys and the settings of the example for Compose, and that its volumes exist.
func TestComposeExample(t *testing.T) {
	all := example[composeFile](t, "compose.yaml")
	if len(all) != 1 || len(all[0].Services) == 0 {
		t.Fatalf("%d documents", len(all))
	}
	for name, service := range all[0].Services {
		for variable := range service.Environment {
			wantSetting(t, variable)
		}
		for _, mount := range service.Volumes {
			volume, _, _ := strings.Cut(mount, ":")
			if _, known := all[0].Volumes[volume]; !known {
				t.Errorf("%s: there is no volume %s", name, volume)
			}
		}
	}
}

// TestKubernetesExamples checks the keys and the settings of the examples for Kubernetes, and that labels, ports and
// volumes fit together.
func TestKubernetesExamples(t *testing.T) {
	for name, want := range map[string][]string{
		"kubernetes-one.yaml":   {"v1 Service", "apps/v1 StatefulSet"},
		"kubernetes-nodes.yaml": {"v1 Service", "policy/v1 PodDisruptionBudget", "apps/v1 Deployment"},
	} {
		t.Run(name, func(t *testing.T) {
			objects := example[object](t, name)
			var kinds []string
			for _, o := range objects {
				kinds = append(kinds, o.APIVersion+" "+o.Kind)
			}
			if !slices.Equal(kinds, want) {
				t.Fatalf("the objects are %v, want %v", kinds, want)
			}
			workload := objects[len(objects)-1]
			app := workload.Spec.Template.Metadata.Labels["app"]
			for _, o := range objects {
				if found := o.Spec.Selector.App + o.Spec.Selector.MatchLabels["app"]; found != app || app == "" {
					t.Errorf("%s selects the pods of %q, want %q", o.Kind, found, app)
				}
			}
			checkPod(t, workload, objects[0])
		})
	}
}

// checkPod checks the pods of a workload, and the ports of the service in front of them.
func checkPod(t *testing.T, workload, service object) {
	t.Helper()
	pod := workload.Spec.Template.Spec
	volumes, ports := map[string]bool{}, map[string]bool{}
	for _, v := range pod.Volumes {
		volumes[v.Name] = true
	}
	for _, v := range workload.Spec.VolumeClaimTemplates {
		volumes[v.Metadata.Name] = true
	}
	for _, c := range append(slices.Clone(pod.InitContainers), pod.Containers...) {
		for _, m := range c.VolumeMounts {
			if !volumes[m.Name] {
				t.Errorf("%s: there is no volume %s", c.Name, m.Name)
			}
		}
		if !c.SecurityContext.ReadOnlyRootFilesystem || c.SecurityContext.AllowPrivilegeEscalation == nil {
			t.Errorf("%s has more rights than it needs", c.Name)
		}
	}
	for _, c := range pod.Containers {
		for _, p := range c.Ports {
			ports[p.Name] = true
		}
		for _, e := range c.Env {
			wantSetting(t, e.Name)
		}
		for path, p := range map[string]probe{"/livez": c.LivenessProbe, "/readyz": c.ReadinessProbe} {
			if p.HTTPGet.Path != path || !ports[p.HTTPGet.Port] {
				t.Errorf("%s is asked for %s at the port %q", c.Name, p.HTTPGet.Path, p.HTTPGet.Port)
			}
		}
		if !ports[c.StartupProbe.HTTPGet.Port] {
			t.Errorf("%s is asked at the port %q at its start", c.Name, c.StartupProbe.HTTPGet.Port)
		}
	}
	for _, p := range service.Spec.Ports {
		if !ports[p.TargetPort] {
			t.Errorf("the service needs the port %s", p.TargetPort)
		}
	}
}

// TestPatroniExample checks that the example for Patroni is YAML, and that it never lets the primary stop waiting.
func TestPatroniExample(t *testing.T) {
	type patroni struct{ Bootstrap struct{ DCS map[string]any } }
	for _, settings := range example[patroni](t, "patroni.yml") {
		if dcs := settings.Bootstrap.DCS; dcs["synchronous_mode"] == true && dcs["synchronous_mode_strict"] == true {
			return
		}
	}
	t.Error("the primary may stop waiting for a standby")
}
