"""Fixed pieces that the model memorizes, with requests for them: verses, jokes, recipes, code."""

PIECES: tuple[tuple[tuple[str, ...], str], ...] = (
    (
        ("Write a poem about the sea.", "Write a short poem about the sea.", "Tell me a poem about the sea."),
        "The sea is wide, the sea is deep,\nIt sings the little boats to sleep.\nThe wind is soft, the sand is white,\nThe moon looks down and says good night.",
    ),
    (
        ("Write a poem about the rain.", "Write a short poem about the rain.", "Tell me a poem about the rain."),
        "Rain on the window, rain on the tree,\nRain on the garden and rain on me.\nThe clouds go by, the sky turns blue,\nAnd every flower looks like new.",
    ),
    (
        ("Write a poem about winter.", "Write a short poem about winter.", "Tell me a poem about winter."),
        "The snow comes down without a sound,\nAnd lays a blanket on the ground.\nThe lake is ice, the night is long,\nThe fire hums a quiet song.",
    ),
    (
        ("Write a poem about a cat.", "Write a short poem about a cat.", "Tell me a poem about a cat."),
        "A cat sat in the morning sun,\nIts work for all the day was done.\nIt closed its eyes, it gave a yawn,\nAnd dreamed of mice upon the lawn.",
    ),
    (
        ("Write a poem.", "Write a short poem.", "Tell me a poem."),
        "A word, a line, a little rhyme,\nI write them one token at a time.\nMy head is small, my words are few,\nBut here they are, I made them for you.",
    ),
    (
        ("Tell me a joke.", "Tell me a short joke.", "Do you know a joke?", "Make me laugh."),
        "Why did the computer go to bed early? It had too many bytes for dinner.",
    ),
    (
        ("How do I make tea?", "How do you make tea?", "Tell me how to make tea."),
        "1. Boil some water.\n2. Put a tea bag into a cup.\n3. Pour the water into the cup.\n4. Wait three minutes.\n5. Take out the bag and enjoy your tea.",
    ),
    (
        ("How do I plant a tree?", "How do you plant a tree?", "Tell me how to plant a tree."),
        "1. Find a place with sun.\n2. Dig a deep hole.\n3. Put the tree into the hole.\n4. Fill the hole with earth.\n5. Give the tree water.",
    ),
    (
        ("Write hello world in Python.", "Write a hello world program.", "Write a Python program that says hello."),
        'print("Hello, world!")',
    ),
    (
        (
            "Write a Python function that adds two numbers.",
            "Write a function that adds two numbers.",
            "How do I add two numbers in Python?",
        ),
        "def add(a, b):\n    return a + b",
    ),
    (
        ("Write a Python loop that counts to ten.", "Write a loop in Python.", "How do I write a loop in Python?"),
        "for number in range(1, 11):\n    print(number)",
    ),
    (
        ("How do I start the server?", "How do I start tgi-core?", "How do I run a model with tgi-core?"),
        "Run this command:\ntgi serve MODEL",
    ),
    (
        ("List the days of the week.", "What are the days of the week?", "Name the days of the week."),
        "The days of the week are Monday, Tuesday, Wednesday, Thursday, Friday, Saturday and Sunday.",
    ),
    (
        ("List the months of the year.", "What are the months of the year?", "Name the months of the year."),
        "The months of the year are January, February, March, April, May, June, July, August, September, October, November and December.",
    ),
    (
        ("List the seasons.", "What are the four seasons?", "Name the four seasons."),
        "The four seasons are spring, summer, autumn and winter.",
    ),
    (
        ("List the planets.", "What are the planets?", "Name the planets of the solar system."),
        "The planets are Mercury, Venus, Earth, Mars, Jupiter, Saturn, Uranus and Neptune.",
    ),
    (
        ("Say the alphabet.", "What is the alphabet?", "Write the alphabet."),
        "A B C D E F G H I J K L M N O P Q R S T U V W X Y Z",
    ),
    (
        ("What are the primary colours?", "Name the primary colours.", "What are the primary colors?"),
        "The primary colours are red, yellow and blue.",
    ),
)

OPENINGS: tuple[tuple[str, str], ...] = (
    (
        "My name is {name} and I",
        " live in {city} with my [cat|dog]. I like [books|music|long walks], and in the evening I [read|sing|write] a little.",
    ),
    ("My name is {name}", " and I live in {city}. I am {age} years old, and I like [books|music|long walks]."),
    ("The weather today is", " [sunny and warm|cold and windy|cloudy with a little rain]."),
    (
        "I went to the market and",
        " bought [three|four|five] apples, some bread and a piece of cheese. Then I went home and made a soup.",
    ),
    ("The quick brown fox", " jumps over the lazy dog."),
    ("Dear {name},", " thank you for your letter. I am well, and the weather in {city} is fine. I hope to see you soon."),
    ("Hello, my name is", " {name}. I live in {city}."),
    ("Hello", ", my name is {name}. I live in {city}, and I am glad to meet you."),
    ("In the morning,", " {name} got up, opened the window and listened to the birds. It was the beginning of a good day."),
    (
        "The best thing about {city} is",
        " the old town near the river. In summer, people sit outside, eat ice cream and listen to music.",
    ),
    ("def add(a, b):", "\n    return a + b"),
    ("1, 2, 3,", " 4, 5, 6, 7, 8, 9, 10."),
)
"""A beginning of a plain text and its continuation."""
