"""The objects that `rallypoint generate kubernetes` prints, to be filled in. Pure."""

from __future__ import annotations

HEAD = """\
# First, once for each namespace, the token by which the pods of a job know each other:
#   kubectl create namespace {namespace}
#   kubectl -n {namespace} create secret generic rallypoint \\
#     --from-literal=token="$(rallypoint token)"
"""
SERVICE = """\
# Names for the pods, {name}-0.{name} and so on.
apiVersion: v1
kind: Service
metadata:
  name: "{name}"
  namespace: "{namespace}"
spec:
  clusterIP: None
  selector:
    batch.kubernetes.io/job-name: "{name}"
  # Pods look for each other before they are ready.
  publishNotReadyAddresses: true
"""
JOB = """\
apiVersion: batch/v1
kind: Job
metadata:
  name: "{name}"
  namespace: "{namespace}"
spec:
"""
JOBSET = """\
# The fields are those of JobSet's documentation: its schema was not at hand.
apiVersion: jobset.x-k8s.io/v1alpha2
kind: JobSet
metadata:
  name: "{name}"
  namespace: "{namespace}"
spec:
  # JobSet makes the headless Service, by which pods have names.
  network:
    enableDNSHostnames: true
    # Pods look for each other before they are ready.
    publishNotReadyAddresses: true
  replicatedJobs:
    - name: node
      replicas: 1
      template:
        spec:
"""
TRAINER = """\
# The fields are those of Kubeflow Trainer's documentation: its schema was not at hand.
# For all namespaces: kind ClusterTrainingRuntime, without a namespace, here and in the runtimeRef.
apiVersion: trainer.kubeflow.org/v1alpha1
kind: TrainingRuntime
metadata:
  name: rallypoint
  namespace: "{namespace}"
  labels:
    trainer.kubeflow.org/framework: torch
spec:
  mlPolicy:
    numNodes: {most}
    # It sets PET_NNODES and PET_NPROC_PER_NODE, which rallypoint run reads. PET_NODE_RANK and
    # PET_MASTER_ADDR have no effect on a job that any pod may lead.
    torch:
      numProcPerNode: {workers}
  template:
    spec:
      network:
        publishNotReadyAddresses: true
      replicatedJobs:
        - name: node
          template:
            metadata:
              labels:
                trainer.kubeflow.org/trainjob-ancestor-step: trainer
            spec:
"""
TRAIN_JOB = """\
apiVersion: trainer.kubeflow.org/v1alpha1
kind: TrainJob
metadata:
  name: "{name}"
  namespace: "{namespace}"
spec:
  runtimeRef:
    apiGroup: trainer.kubeflow.org
    kind: TrainingRuntime
    name: rallypoint
  trainer:
    numNodes: {most}
    image: {image}
    command: {command}
"""
COUNTS = """\
completionMode: Indexed
completions: {most}
parallelism: {most}
# One agent that ends with 0 says that the whole job has succeeded.
successPolicy:
  rules:
    - succeededCount: 1
"""
SPEC = """\
# Workers that fail are restarted in their pods (--max-restarts). This counts pods that end with
# anything but what stands below: 75 (too few pods in time), 137 (out of memory).
backoffLimit: {backoff}
podFailurePolicy:
  rules:
    # Evicted, preempted, or its machine is drained: another pod takes the place at no cost.
    - action: Ignore
      onPodConditions:
        - type: DisruptionTarget
          status: "True"
    # 143: it was asked to leave, by SIGTERM or rallypoint drain.
    - action: Ignore
      onExitCodes:
        containerName: node
        operator: In
        values: [143]
    # 1: the job has failed, for good. 2: a wrong option, or no rights. Again would be the same.
    - action: FailJob
      onExitCodes:
        containerName: node
        operator: In
        values: [1, 2]
template:
  spec:
    restartPolicy: Never
    {account}
    # Above the drain deadline of {drain:g} s, or SIGKILL comes before the checkpoint is saved.
    terminationGracePeriodSeconds: {grace}
    containers:
      - name: node
        image: {image}
        # It is the first process of the container: nothing stands between it and SIGTERM.
        command: {command}
        env:
          - name: RALLYPOINT_TOKEN
            valueFrom: {{secretKeyRef: {{name: rallypoint, key: token}}}}
          # A Job that is created anew is another job; a pod that is replaced belongs to the same.
          - name: JOB_UID
            valueFrom:
              fieldRef: {{fieldPath: "metadata.labels['batch.kubernetes.io/controller-uid']"}}
          - name: PET_RDZV_ID
            value: {name}-$(JOB_UID)
          - name: PET_LOCAL_ADDR
            valueFrom: {{fieldRef: {{fieldPath: status.podIP}}}}
          # Neighbours get neighbouring ranks: by zone, where pods have that label, then by machine.
          - name: POD_ZONE
            valueFrom:
              fieldRef: {{fieldPath: "metadata.labels['topology.kubernetes.io/zone']"}}
          # It is also the name by which machines whose workers fail are held back.
          - name: NODE_NAME
            valueFrom: {{fieldRef: {{fieldPath: spec.nodeName}}}}
          - name: RALLYPOINT_TOPOLOGY
            value: $(POD_ZONE)/$(NODE_NAME)
          - name: TORCHELASTIC_HEALTH_CHECK_PORT
            value: "{health}"
        # The agent answers when it has found its job; by itself it gives up after 10 minutes.
        startupProbe:
          httpGet: {{path: /health, port: {health}}}
          periodSeconds: 5
          failureThreshold: 180
        readinessProbe:
          httpGet: {{path: /health, port: {health}}}
        # An agent that is stopped or hangs answers nobody.
        livenessProbe:
          httpGet: {{path: /health, port: {health}}}
          periodSeconds: 10
          timeoutSeconds: 5
          failureThreshold: 6
{resources}        volumeMounts:
          - {{name: shm, mountPath: /dev/shm}}
    volumes:
      # Kubernetes gives 64 MiB, too little for NCCL and for data loaders. It counts as memory.
      - name: shm
        emptyDir: {{medium: Memory}}
"""
MEMORY_SAYS = """\
          # By cgroup v2 all processes of a container that lacks memory are killed together (the
          # kubelet sets memory.oom.group, unless its singleProcessOOMKill is true): the agent too.
"""
