package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/rand"
)

// testOptions are the flags of test.
type testOptions struct {
	images    []string // IMAGE or IMAGE=COMMAND
	names     []string
	domain    string
	namespace string // of the client pods
}

func testCommand(c *cluster) *cobra.Command {
	var f format
	var o testOptions
	cmd := &cobra.Command{
		Use:   "test",
		Short: "Look up names in client pods on each node",
		Long: `Start a short-lived pod of each image on each node, look up names of Services and
external names in it, and report for each node. The pods have no privileges. test
deletes them when it ends, also after Ctrl-C.

The first lookup of a kind uses the search domains of the pod. An image needs a shell,
and getent or the COMMAND, which looks up the name that is its last argument.

Exit status: 0 every lookup succeeded; 1 one failed; 2 an error.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if len(o.images) == 0 {
				return errors.New("--image: want at least one")
			}
			return c.test(cmd.Context(), o, f)
		},
	}
	f.add(cmd)
	fs := cmd.Flags()
	fs.StringSliceVar(&o.images, "image", []string{"docker.io/library/alpine:3", "docker.io/library/debian:stable-slim"}, "images of the clients, IMAGE or IMAGE=COMMAND; the defaults have musl and glibc")
	fs.StringSliceVar(&o.names, "name", []string{"example.com"}, "external names to look up")
	fs.StringVar(&o.domain, "cluster-domain", "cluster.local", "the cluster's domain")
	fs.StringVar(&o.namespace, "client-namespace", "default", "namespace of the client pods")
	return cmd
}

// trial is a client pod's lookups.
type trial struct {
	Node    string   `json:"node"`
	Image   string   `json:"image"`           // value of the flag
	Error   string   `json:"error,omitempty"` // the pod did not run
	Lookups []lookup `json:"lookups,omitempty"`
}

type lookup struct {
	Name    string  `json:"name"`
	Seconds float64 `json:"seconds"` // in steps of 0.01
	Error   string  `json:"error,omitempty"`
}

func (c *cluster) test(ctx context.Context, o testOptions, f format) error {
	pods, err := c.pods(ctx)
	if err != nil {
		return err
	}
	trials, err := c.try(ctx, pods, o)
	if err != nil {
		return err
	}
	if f.data() {
		err = f.print(c.out, trials)
	} else {
		err = table(c.out, trialRows(trials, f == "wide"))
	}
	for _, t := range trials {
		if err == nil && t.failed() > 0 {
			return exitStatus(1)
		}
	}
	return err
}

// try runs the client pods on the nodes of the pods.
func (c *cluster) try(ctx context.Context, on []corev1.Pod, o testOptions) (trials []trial, err error) {
	run := rand.String(8)
	var clients []corev1.Pod
	var images []string // values of the flag
	for _, pod := range on {
		for _, image := range o.images {
			client := clientPod(pod.Spec.NodeName, image, o, c.timeout)
			client.Name = fmt.Sprintf("kubectl-nodens-test-%s-%d", run, len(clients))
			clients, images = append(clients, client), append(images, image)
		}
	}
	for i, a := range each(ctx, c, clients, c.runClient) {
		t := trial{Node: a.Node, Image: images[i], Lookups: a.Value}
		if a.Err != nil {
			t.Error = sentence(a.Err)
		}
		trials = append(trials, t)
	}
	return trials, context.Cause(ctx)
}

// script runs the command $1 for each of the names $2…, with a timeout of 10 s each. It
// writes a line for each lookup to the termination message, which can be read without
// the right to read logs: the status, hundredths of a second, and the name.
const script = `now() { read -r up _ </proc/uptime; echo "${up%.*}${up#*.}"; }
look=$1; shift
for name; do
  start=$(now)
  timeout 10 $look "$name" >/tmp/out 2>&1; status=$?
  [ -s /tmp/out ] || [ $status != 0 ] || status=1
  grep -q EAI_ /tmp/out && status=2
  echo "$status $(( $(now) - start )) $name" >>/dev/termination-log
done`

// clientPod returns a pod that Kubernetes' profile "restricted" allows.
func clientPod(node, image string, o testOptions, timeout time.Duration) corev1.Pod {
	image, look, _ := strings.Cut(image, "=")
	no, yes, user := false, true, int64(65534)
	seconds, grace := int64(timeout/time.Second)+1, int64(0)
	return corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: o.namespace,
			Labels:    map[string]string{"app.kubernetes.io/name": "kubectl-nodens-test"},
		},
		Spec: corev1.PodSpec{
			NodeName:                      node,
			RestartPolicy:                 corev1.RestartPolicyNever,
			ActiveDeadlineSeconds:         &seconds, // if this program is killed
			TerminationGracePeriodSeconds: &grace,
			AutomountServiceAccountToken:  &no,
			EnableServiceLinks:            &no,
			Tolerations:                   []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
			SecurityContext: &corev1.PodSecurityContext{
				RunAsNonRoot: &yes, RunAsUser: &user, RunAsGroup: &user,
				SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
			},
			Containers: []corev1.Container{{
				Name: "client", Image: image, ImagePullPolicy: corev1.PullIfNotPresent,
				Command:      append([]string{"/bin/sh", "-c", script, "sh", cmp.Or(look, "getent hosts")}, namesOf(o)...),
				VolumeMounts: []corev1.VolumeMount{{Name: "tmp", MountPath: "/tmp"}},
				SecurityContext: &corev1.SecurityContext{
					AllowPrivilegeEscalation: &no, ReadOnlyRootFilesystem: &yes,
					Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
				},
			}},
			Volumes: []corev1.Volume{{Name: "tmp", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{Medium: corev1.StorageMediumMemory}}}},
		},
	}
}

// namesOf returns the names to look up. A Service is looked up in the three forms that
// programs use.
func namesOf(o testOptions) []string {
	service := "kubernetes.default.svc"
	return append([]string{"kubernetes.default", service, service + "." + o.domain + "."}, o.names...)
}

// apiTimeout limits requests that must not end with ctx.
const apiTimeout = 30 * time.Second

// runClient starts a pod, returns its lookups when it has ended, and deletes it, also
// if ctx is done.
func (c *cluster) runClient(ctx context.Context, client *corev1.Pod) (lookups []lookup, err error) {
	pods := c.client.CoreV1().Pods(client.Namespace)
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	always, cancel := context.WithTimeout(context.WithoutCancel(ctx), apiTimeout)
	defer cancel()
	pod, err := pods.Create(always, client, metav1.CreateOptions{})
	if apierrors.IsForbidden(err) || apierrors.IsInvalid(err) {
		return nil, err // there is no pod
	}
	defer func() {
		always, cancel := context.WithTimeout(context.WithoutCancel(ctx), apiTimeout)
		defer cancel()
		derr := pods.Delete(always, client.Name, *metav1.NewDeleteOptions(0))
		if derr != nil && !apierrors.IsNotFound(derr) {
			err = errors.Join(err, fmt.Errorf("delete the client pod: %w", derr))
		}
	}()
	for err == nil {
		lookups, done := ended(pod, client.Spec.Containers[0].Command[5:])
		switch {
		case done:
			return lookups, nil
		case pod.Status.Phase == corev1.PodFailed:
			return nil, fmt.Errorf("the client pod failed: %s: %s", pod.Status.Reason, pod.Status.Message)
		}
		select {
		case <-time.After(time.Second):
			next, gerr := pods.Get(ctx, client.Name, metav1.GetOptions{})
			switch {
			case gerr == nil:
				pod = next
			case ctx.Err() == nil:
				err = gerr
			}
		case <-ctx.Done():
			err = fmt.Errorf("the client pod has not ended: %s", waiting(pod))
		}
	}
	return nil, err
}

// waiting returns the reason why a pod has not ended.
func waiting(pod *corev1.Pod) string {
	for _, s := range pod.Status.ContainerStatuses {
		if w := s.State.Waiting; w != nil {
			return strings.TrimSuffix(w.Reason+": "+w.Message, ": ")
		}
	}
	return cmp.Or(string(pod.Status.Phase), "no status")
}

// ended returns the lookups of a client pod that has ended. A name without a lookup, for
// example because the pod was killed, is one that failed.
func ended(pod *corev1.Pod, names []string) (lookups []lookup, done bool) {
	for _, s := range pod.Status.ContainerStatuses {
		t := s.State.Terminated
		if t == nil {
			continue
		}
		for line := range strings.Lines(t.Message) {
			var l lookup
			var status, hundredths int
			if n, err := fmt.Sscanf(line, "%d %d %s", &status, &hundredths, &l.Name); n != 3 || err != nil {
				continue
			}
			l.Seconds = float64(hundredths) / 100
			l.Error = meaning(status)
			lookups = append(lookups, l)
		}
		end := fmt.Sprintf("the client ended with exit status %d: %s", t.ExitCode, t.Reason)
		if len(lookups) == 0 {
			return []lookup{{Name: "-", Error: end + " " + strings.TrimSpace(t.Message)}}, true
		}
		for _, name := range names {
			if !slices.ContainsFunc(lookups, func(l lookup) bool { return l.Name == name }) {
				lookups = append(lookups, lookup{Name: name, Error: "no result: " + end})
			}
		}
		return lookups, true
	}
	return nil, false
}

// meaning explains the exit status of a lookup.
func meaning(status int) string {
	switch status {
	case 0:
		return ""
	case 124, 143: // timeout's exit status, in GNU and in busybox
		return "no answer within 10 s"
	case 127:
		return "the image does not have the command; set --image IMAGE=COMMAND"
	}
	return "not found"
}

// failed returns the number of lookups that failed.
func (t trial) failed() (n int) {
	for _, l := range t.Lookups {
		if l.Error != "" {
			n++
		}
	}
	if t.Error != "" {
		n++
	}
	return n
}

// slowLookup is the least time that a resolver loses with one packet.
const slowLookup = 1 // second

// trialRows returns a row for each trial. PROBLEMS lists failed and slow lookups.
func trialRows(trials []trial, wide bool) [][]string {
	rows := [][]string{{"NODE", "IMAGE", "OK", "LONGEST", "PROBLEMS"}}
	if wide {
		rows[0] = append(rows[0], "LOOKUPS")
	}
	for _, t := range trials {
		ok, longest, problems, lookups := 0, 0.0, []string(nil), []string(nil)
		if t.Error != "" {
			problems = append(problems, t.Error)
		}
		for _, l := range t.Lookups {
			longest = max(longest, l.Seconds)
			switch {
			case l.Error != "":
				problems = append(problems, l.Name+": "+l.Error)
			case l.Seconds >= slowLookup:
				problems = append(problems, fmt.Sprintf("%s: slow, %.1fs", l.Name, l.Seconds))
				fallthrough
			default:
				ok++
			}
			lookups = append(lookups, fmt.Sprintf("%s %.2fs", l.Name, l.Seconds))
		}
		row := []string{t.Node, t.Image, fmt.Sprintf("%d of %d", ok, len(t.Lookups)), fmt.Sprintf("%.2fs", longest), cmp.Or(strings.Join(problems, "; "), "none")}
		if wide {
			row = append(row, strings.Join(lookups, ", "))
		}
		rows = append(rows, row)
	}
	return rows
}
