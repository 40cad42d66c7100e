"""Individual facts: cue | ending | question | question …"""

from demo_corpus.tables import rows

SCIENCE = rows("""
    The Earth goes around | the Sun | What does the Earth go around? | What does the Earth orbit?
    The Moon goes around | the Earth | What does the Moon go around? | What does the Moon orbit?
    The Sun is | a star | What is the Sun? | Is the Sun a star or a planet?
    The largest planet is | Jupiter | What is the largest planet? | Which planet is the largest?
    The smallest planet is | Mercury | What is the smallest planet? | Which planet is the smallest?
    The red planet is | Mars | What is the red planet? | Which planet is called the red planet?
    The planet with bright rings is | Saturn | Which planet has bright rings? | What is the planet with bright rings?
    The solar system has | eight planets | How many planets are there? | How many planets does the solar system have?
    The largest ocean is | the Pacific Ocean | What is the largest ocean? | Which ocean is the largest?
    The highest mountain is | Mount Everest | What is the highest mountain? | Which mountain is the highest?
    The longest river in Africa is | the Nile | What is the longest river in Africa? | Which river in Africa is the longest?
    The largest hot desert is | the Sahara | What is the largest hot desert? | Which hot desert is the largest?
    The largest continent is | Asia | What is the largest continent? | Which continent is the largest?
    The largest country is | Russia | What is the largest country? | Which country is the largest?
    The largest animal is | the blue whale | What is the largest animal? | Which animal is the largest?
    The largest land animal is | the elephant | What is the largest land animal? | Which land animal is the largest?
    The tallest animal is | the giraffe | What is the tallest animal? | Which animal is the tallest?
    The fastest land animal is | the cheetah | What is the fastest land animal? | Which land animal is the fastest?
    The largest bird is | the ostrich | What is the largest bird? | Which bird is the largest?
    Water freezes at | 0 degrees Celsius | At what temperature does water freeze? | When does water freeze?
    Water boils at | 100 degrees Celsius | At what temperature does water boil? | When does water boil?
    Water is made of | hydrogen and oxygen | What is water made of? | Which elements make water?
    Ice is | frozen water | What is ice? | What is frozen water called?
    Plants need | light, water and air | What do plants need? | What does a plant need to grow?
    Bees make | honey | What do bees make? | What does a bee make?
    Cows give us | milk | What do cows give us? | What do we get from cows?
    Hens lay | eggs | What do hens lay? | What does a hen lay?
    Sheep give us | wool | What do sheep give us? | What do we get from sheep?
    Bread is made from | flour | What is bread made from? | What do we make bread from?
    Cheese is made from | milk | What is cheese made from? | What do we make cheese from?
    Glass is made from | sand | What is glass made from? | What do we make glass from?
    Paper is made from | wood | What is paper made from? | What do we make paper from?
    The heart pumps | blood | What does the heart pump? | What does the heart do?
    We see with | our eyes | What do we see with? | Which part of the body do we see with?
    We hear with | our ears | What do we hear with? | Which part of the body do we hear with?
    We smell with | our nose | What do we smell with? | Which part of the body do we smell with?
    People breathe in | oxygen | What do people breathe in? | Which gas do people breathe in?
    A triangle has | three sides | How many sides does a triangle have? | How many sides are there in a triangle?
    A square has | four sides | How many sides does a square have? | How many sides are there in a square?
    A hexagon has | six sides | How many sides does a hexagon have? | How many sides are there in a hexagon?
    The chemical symbol for gold is | Au | What is the chemical symbol for gold? | What is the symbol for gold?
    The chemical symbol for iron is | Fe | What is the chemical symbol for iron? | What is the symbol for iron?
    The chemical symbol for silver is | Ag | What is the chemical symbol for silver? | What is the symbol for silver?
    The chemical formula of water is | H2O | What is the chemical formula of water? | What is the formula of water?
    Light is faster than | sound | What is light faster than? | Which is faster, light or sound?
    A thermometer measures | temperature | What does a thermometer measure? | What is a thermometer for?
    A clock measures | time | What does a clock measure? | What is a clock for?
    A compass points | north | Where does a compass point? | Which way does a compass point?
    Rain falls from | the clouds | Where does rain fall from? | Where does rain come from?
    The Sun rises in | the east | Where does the Sun rise? | In which direction does the Sun rise?
    The Sun sets in | the west | Where does the Sun set? | In which direction does the Sun set?
    A rainbow has | seven colours | How many colours does a rainbow have? | How many colors are there in a rainbow?
    The season after winter is | spring | Which season comes after winter? | What is the season after winter?
    The season after spring is | summer | Which season comes after spring? | What is the season after spring?
    The season after summer is | autumn | Which season comes after summer? | What is the season after summer?
    The season after autumn is | winter | Which season comes after autumn? | What is the season after autumn?
""")

COMPUTING = rows("""
    Deep learning is | a kind of machine learning that uses neural networks with many layers | What is deep learning? | What is Deep Learning? | Explain deep learning.
    Machine learning is | a way to let computers learn from examples | What is machine learning? | Explain machine learning.
    A neural network is | a program that learns from examples with many small weights | What is a neural network? | Explain neural networks.
    A language model is | a program that predicts the next token of a text | What is a language model? | What is an LLM? | What is a large language model?
    A token is | a small piece of text, such as a word or a part of a word | What is a token? | What are tokens?
    A tokenizer is | a program that splits text into tokens | What is a tokenizer? | What does a tokenizer do?
    A GPU is | a chip that does many calculations at the same time | What is a GPU? | What does a GPU do?
    A CPU is | the chip that runs the programs of a computer | What is a CPU? | What does a CPU do?
    A batch is | a group of requests that run together | What is a batch? | What does batch mean?
    A server is | a program that answers requests from clients | What is a server? | What does a server do?
    A backend is | a plugin that runs the model on one kind of hardware | What is a backend? | What does a backend do?
    The KV cache is | the memory in which a model keeps the tokens that it has read | What is the KV cache? | What is a KV cache?
    JSON is | a text format for data | What is JSON? | Explain JSON.
    Python is | a programming language | What is Python? | What kind of language is Python?
    Streaming means | that the tokens of an answer are sent one by one | What is streaming? | What does streaming mean?
""")
